"""The tutorials' programs, in Python and in C++, run, learn, and do what their heads say."""

import re
import subprocess
from pathlib import Path

import pytest

from support.programs import run_forked, run_fresh
from support.ranks import BACKENDS, skip_without_gpus

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/tutorials"

ways = pytest.mark.parametrize("way", ["c++", *BACKENDS])  # in C++, or in Python over a backend
sizes = pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.costly)])


def run(way, script, program, world_size):
    """What a tutorial says that has ranks."""
    if way == "c++":
        return outputs(ROOT / "build/bin" / f"fairshard-tutorial-{program}", str(world_size))
    skip_without_gpus(way, world_size)
    # Once as a user runs it, whose ranks are new interpreters. CUDA's are always: it does not survive a fork.
    is_fresh = way == "nccl" or (script, way, world_size) == ("oss_sharded_ddp.py", "gloo", 2)
    run_script = run_fresh if is_fresh else run_forked
    return run_script(FOLDER / script, f"--world-size={world_size}", f"--backend={way}")


def outputs(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result


def check_shares(result, world_size):
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), owns (\d+)%", result.stdout)
    assert len(lines) == world_size
    for first, last, share in lines:
        assert float(last) < 0.1 * float(first)
        assert int(share) == pytest.approx(100 / world_size, abs=2)


@ways
@sizes
def test_oss_and_sharded_ddp(way, world_size):
    check_shares(run(way, "oss_sharded_ddp.py", "oss", world_size), world_size)


@ways
@sizes
def test_grad_scaler(way, world_size):
    result = run(way, "grad_scaler.py", "grad-scaler", world_size)
    check_shares(result, world_size)
    if way != "c++":  # the tutorial's own loop, which is told once on each rank what it should write
        assert result.stderr.count("write scaler.step(optimizer)") == world_size


@ways
def test_adascale(way):
    result = run(way, "adascale.py", "adascale", 2)
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), gain (\S+), (\d+) steps are worth (\S+)", result.stdout)
    assert len(lines) == 2
    for first, last, gain, steps, worth in lines:
        assert float(last) < 0.1 * float(first)
        assert 1.0 < float(gain) < 2.0
        assert int(steps) < float(worth) < 2 * int(steps)
    assert lines[0][2:] == lines[1][2:]  # the ranks agree


@ways
@sizes
def test_slowmo(way, world_size):
    result = run(way, "slowmo_ddp.py", "slowmo", world_size)
    lines = re.findall(r"rank \d: loss (\S+) -> (\S+), synchronised nodes (\d+) times in (\d+) steps", result.stdout)
    assert len(lines) == world_size
    for first, last, times, steps in lines:
        assert float(last) < 0.1 * float(first)
        assert (int(times), int(steps)) == (20, 60)  # every third step, the slow step at 48 among them
    assert result.stderr.count("served better") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("language", ["python", "c++"])
def test_offload(language):
    if language == "python":
        result = run_fresh(FOLDER / "offload.py")
    else:
        result = outputs(ROOT / "build/bin/fairshard-tutorial-offload")
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
