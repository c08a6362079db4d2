"""The tutorials' programs run, learn, and shard."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/tutorials"


def outputs(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result


def run(*command, world_size):
    result = outputs(*command)
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


def test_adascale():
    result = outputs(sys.executable, FOLDER / "adascale.py", "--world-size=2")
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), gain (\S+), (\d+) steps are worth (\S+)", result.stdout)
    assert len(lines) == 2
    for first, last, gain, steps, worth in lines:
        assert float(last) < 0.1 * float(first)
        assert 1.0 < float(gain) < 2.0
        assert int(steps) < float(worth) < 2 * int(steps)
    assert lines[0][2:] == lines[1][2:]  # the ranks agree


@pytest.mark.parametrize("world_size", [2, 4])
def test_slowmo(world_size):
    result = outputs(sys.executable, FOLDER / "slowmo_ddp.py", f"--world-size={world_size}")
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), synchronised nodes (\d+) times in (\d+) steps", result.stdout)
    assert len(lines) == world_size
    for first, last, times, steps in lines:
        assert float(last) < 0.1 * float(first)
        assert (int(times), int(steps)) == (20, 60)  # every third step, the slow step at 48 among them
    assert result.stderr.count("served better") == 1


def test_offload():
    result = outputs(sys.executable, FOLDER / "offload.py")
    first, last, slices = re.search(r"loss (\S+) -> (\S+), (\d) slices", result.stdout).groups()
    assert float(last) < 0.2 * float(first)
    assert int(slices) == 3
