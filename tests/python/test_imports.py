"""What is there after ``import fairshard`` alone."""

import subprocess
import sys

NAMES = (
    "checkpoint.Checkpoint",
    "comm.Group",
    "experimental.nn.OffloadModel",
    "experimental.nn.data_parallel.SlowMoDistributedDataParallel",
    "nn.ShardedDataParallel",
    "nn.data_parallel.ShardedDataParallel",
    "optim.OSS",
)


def test_names_are_there_after_import_fairshard():
    program = "import fairshard\n" + "\n".join(f"fairshard.{name}" for name in NAMES)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_compilers_are_not_imported():
    program = "import sys, fairshard; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
