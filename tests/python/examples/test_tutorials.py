"""The tutorials' programs, in Python and in C++, run, learn, and do what their heads say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/tutorials"

languages = pytest.mark.parametrize("language", ["python", "c++"])
sizes = pytest.mark.parametrize("world_size", [2, 4])


def outputs(language, script, program, world_size=None):
    """What a tutorial says in one of its two languages."""
    if language == "python":
        command = [sys.executable, FOLDER / script]
        command += [] if world_size is None else [f"--world-size={world_size}"]
    else:
        command = [ROOT / "build/bin" / f"fairshard-tutorial-{program}"]
        command += [] if world_size is None else [str(world_size)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result


def check_shares(result, world_size):
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), owns (\d+)%", result.stdout)
    assert len(lines) == world_size
    for first, last, share in lines:
        assert float(last) < 0.1 * float(first)
        assert int(share) == pytest.approx(100 / world_size, abs=2)


@languages
@sizes
def test_oss_and_sharded_ddp(language, world_size):
    check_shares(outputs(language, "oss_sharded_ddp.py", "oss", world_size), world_size)


@languages
@sizes
def test_grad_scaler(language, world_size):
    result = outputs(language, "grad_scaler.py", "grad-scaler", world_size)
    check_shares(result, world_size)
    if language == "python":  # the tutorial's own loop, which is told once on each rank what it should write
        assert result.stderr.count("write scaler.step(optimizer)") == world_size


@languages
def test_adascale(language):
    result = outputs(language, "adascale.py", "adascale", 2)
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), gain (\S+), (\d+) steps are worth (\S+)", result.stdout)
    assert len(lines) == 2
    for first, last, gain, steps, worth in lines:
        assert float(last) < 0.1 * float(first)
        assert 1.0 < float(gain) < 2.0
        assert int(steps) < float(worth) < 2 * int(steps)
    assert lines[0][2:] == lines[1][2:]  # the ranks agree


@languages
@sizes
def test_slowmo(language, world_size):
    result = outputs(language, "slowmo_ddp.py", "slowmo", world_size)
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), synchronised nodes (\d+) times in (\d+) steps", result.stdout)
    assert len(lines) == world_size
    for first, last, times, steps in lines:
        assert float(last) < 0.1 * float(first)
        assert (int(times), int(steps)) == (20, 60)  # every third step, the slow step at 48 among them
    assert result.stderr.count("served better") == 1


@languages
def test_offload(language):
    result = outputs(language, "offload.py", "offload")
    first, last, slices = re.search(r"loss (\S+) -> (\S+), (\d) slices", result.stdout).groups()
    assert float(last) < 0.2 * float(first)
    assert int(slices) == 3


@pytest.mark.parametrize("stem", ["adascale", "grad_scaler", "offload", "oss_sharded_ddp", "slowmo_ddp"])
@pytest.mark.parametrize("suffix", [".py", ".cpp"])
def test_a_tutorial_is_short_and_names_its_command_and_output(stem, suffix):
    source = (FOLDER / stem).with_suffix(suffix)
    text = source.read_text()
    assert len(text.splitlines()) < 100
    command = f"python examples/tutorials/{source.name}" if source.suffix == ".py" else "build/bin/fairshard-tutorial-"
    head = text.splitlines()[:12]
    assert any(command in line for line in head)
    assert any("loss 2.3" in line for line in head)
