"""The tutorials' programs run, learn, and shard."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples/tutorials"


@pytest.mark.parametrize(("world_size", "order"), [(2, []), (2, ["--wrap-first"]), (4, ["--wrap-first"])])
def test_oss_and_sharded_ddp(world_size, order):
    command = [sys.executable, FOLDER / "oss_sharded_ddp.py", f"--world-size={world_size}", *order]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), owns (\d+)%", result.stdout)
    assert len(lines) == world_size
    for first, last, share in lines:
        assert float(last) < 0.1 * float(first)
        assert int(share) == pytest.approx(100 / world_size, abs=2)
