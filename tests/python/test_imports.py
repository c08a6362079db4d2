"""What is there after ``import fairshard`` alone."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint.Checkpoint",
        "comm.Group",
        "experimental.nn.OffloadModel",
        "experimental.nn.data_parallel.SlowMoDistributedDataParallel",
        "nn.ShardedDataParallel",
        "nn.data_parallel.ShardedDataParallel",
        "optim.OSS",
    ],
)
def test_it_is_there_after_import_fairshard(name):
    result = subprocess.run(
        [sys.executable, "-c", f"import fairshard; fairshard.{name}"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
