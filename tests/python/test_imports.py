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
#: They take seconds to import, and only some have them.
EXTRAS = {"accelerate", "lightning", "pytorch_lightning", "ray", "transformers"}


def test_names_are_there_after_import_fairshard():
    program = "import fairshard, sys\n" + "\n".join(f"fairshard.{name}" for name in NAMES)
    program += f"\nassert not {EXTRAS} & sys.modules.keys()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_compilers_are_not_imported():
    program = "import sys, fairshard; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
