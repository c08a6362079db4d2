"""The tutorials' programs run, learn, and shard."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/tutorials"


def run(*command, world_size):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), owns (\d+)%", result.stdout)
    assert len(lines) == world_size
    for first, last, share in lines:
        assert float(last) < 0.1 * float(first)
        assert int(share) == pytest.approx(100 / world_size, abs=2)
    return result.stderr


@pytest.mark.parametrize("world_size", [2, 4])
def test_oss_and_sharded_ddp(world_size):
    run(sys.executable, FOLDER / "oss_sharded_ddp.py", f"--world-size={world_size}", world_size=world_size)


@pytest.mark.parametrize("world_size", [2, 4])
def test_oss_and_sharded_ddp_in_cpp(world_size):
    run(ROOT / "build/bin/fairshard-tutorial-oss", str(world_size), world_size=world_size)


@pytest.mark.parametrize("world_size", [2, 4])
def test_grad_scaler(world_size):
    warnings = run(sys.executable, FOLDER / "grad_scaler.py", f"--world-size={world_size}", world_size=world_size)
    assert warnings.count("write scaler.step(optimizer)") == world_size  # once for each rank
