"""Nothing grows while a model trains in one mode or another, or is made and dropped; and what grows would be seen."""

import functools
import json
import math
import os
import random
import statistics
import subprocess
import sys

import pytest
import torch

STEPS = 2000
MODES = (
    "replicated",
    "optimizer",
    "gradients",
    "overlap_gather",
    "step_in_backward",
    "release_parameters",
    "offload",
    "slowmo",
    "adascale+scaler",
    "checkpoints",
    "cycles",
)

pytestmark = pytest.mark.usefixtures("benchmarks")


def test_all_modes_are_here(benchmarks):
    import soak_modes

    assert list(MODES) == soak_modes.OURS


@pytest.mark.parametrize("mode", MODES)
def test_nothing_grows(benchmarks, mode):
    import soak
    import soak_modes

    make = soak_modes.maker(mode)
    if mode == "checkpoints":
        make = functools.partial(make, every=STEPS // 50)
    found = soak.soak(make, soak.work_of(mode, STEPS))
    assert soak.growth(mode, found) == []


class Leaking:
    """Trains, and keeps something of every step."""

    def __init__(self, leak, model, folder):
        import soak_modes

        self._training, self._leak, self._kept = soak_modes.sharded(model, folder), leak, []

    def train(self, *inputs):
        self._kept.append(self._leak())
        return self._training.train(*inputs)

    def finish(self):
        self._training.finish()


def a_tensor():
    return torch.ones(16)


def a_descriptor():
    return os.open(os.devnull, os.O_RDONLY)


@pytest.mark.parametrize(("leak", "quantities"), [(a_tensor, {"heap", "tensors"}), (a_descriptor, {"descriptors"})])
def test_what_leaks_is_named(benchmarks, leak, quantities):
    import soak

    found = soak.soak(functools.partial(Leaking, leak), soak.work_of("leaking", 500))
    grown = {quantity for quantity, judged in found["judged"].items() if judged["grows"]}
    assert quantities <= grown
    assert found["judged"][max(quantities)]["slope"] == pytest.approx(1, abs=0.01)  # tensors, or descriptors
    told = " ".join(soak.growth("leaking", found))
    assert all(f"leaking: {quantity} grows by " in told for quantity in quantities)
    assert ("threads" in grown, "keys" in grown) == (False, False)


def wandering(generator, count=200, memory=0.8):
    """Noise in which each value depends on the one before, as samples of a process's memory do."""
    value, values = 0.0, []
    for _ in range(count):
        value = memory * value + generator.gauss(0, 1)
        values.append(value)
    return values


def line_of(values):
    from trends import BLOCKS, medians, slope

    return slope(medians(values), len(values) / BLOCKS)


def least_squares(values):
    """The slope and its error as if samples were independent."""
    x = range(len(values))
    line = statistics.linear_regression(x, values)
    rest = sum((y - line.slope * at - line.intercept) ** 2 for at, y in enumerate(values))
    return line.slope, math.sqrt(rest / (len(values) - 2) / (len(values) * statistics.pvariance(x)))


def test_noise_that_wanders_is_no_trend(benchmarks):
    """Where a fit by least squares is beyond twice its own error in every fourth series."""
    generator = random.Random(1)
    series = [wandering(generator) for _ in range(300)]
    assert sum(line_of(values).low > 0 for values in series) <= 2
    assert sum(slope > 2 * error for slope, error in map(least_squares, series)) >= 60


def test_a_slope_is_found_within_its_error(benchmarks):
    generator = random.Random(2)
    lines = []
    for _ in range(100):
        values = [0.1 * x + noise for x, noise in enumerate(wandering(generator))]
        lines.append(line_of(values))
        assert lines[-1].middle == pytest.approx(least_squares(values)[0], abs=lines[-1].error)
    assert all(line.low > 0 for line in lines)
    assert sum(line.low <= 0.1 <= line.high for line in lines) >= 97


@pytest.mark.parametrize(("jumps", "is_trend"), [(0, False), (1, False), (2, False), (3, True), (10, True)])
def test_a_jump_or_two_are_no_trend(benchmarks, jumps, is_trend):
    values = [1000 * (x * (jumps + 1) // 200) for x in range(200)]
    assert (line_of(values).low > 0) == is_trend


def test_too_few_samples_are_refused(benchmarks):
    with pytest.raises(ValueError, match="19 samples are too few for 20 blocks"):
        line_of([0.0] * 19)


def test_growth_that_does_not_matter_is_none(benchmarks):
    from soak import QUANTITIES, judge

    little, much = ([rate * 400 * number for number in range(250)] for rate in (0.5, 2))
    assert not judge(little, 400, QUANTITIES["heap"])["grows"]
    assert judge(much, 400, QUANTITIES["heap"])["grows"]


def test_the_program_goes_on_where_it_was_and_fails_where_something_grew(benchmarks, tmp_path):
    out = tmp_path / "trial.json"

    def run(*modes):
        command = [sys.executable, benchmarks / "soak.py", "--steps=500", f"--out={out}", "--resume", "--modes", *modes]
        return subprocess.run(command, capture_output=True, text=True)

    done = run("offload")
    assert done.returncode == 0, done.stderr
    assert "offload: flat (500 steps" in done.stdout
    results = json.loads(out.read_text())
    results["modes"]["offload"]["judged"]["heap"] |= {"slope": 80.0, "grows": True}
    out.write_text(json.dumps(results))
    done = run("offload")
    assert done.returncode == 1
    assert "offload: heap grows by 80 +- " in done.stderr
    assert "there is no mode fast" in run("fast").stderr


def test_the_page_says_what_grows(benchmarks, about):
    import pictures
    import soak_tables

    def mode(**judged):
        flat = {"slope": 0.0, "error": 0.0, "grows": False, "rank": 0}
        names = ("resident", "heap", "objects", "tensors", "threads", "descriptors", "keys")
        judged = {name: flat for name in names} | judged
        return {"about": about, "steps": 100000, "judged": judged, "resident": [[2**20, 2**21], [2**20, 2**20]]}

    heap = {"slope": 812.4, "error": 3.2, "grows": True, "rank": 1}
    modes = {
        "gradients": mode(),
        "ddp": mode(heap=heap, tensors={"slope": 0.25, "error": 0.0, "grows": True, "rank": 0}),
    }
    lines = soak_tables.table(modes).splitlines()
    assert "| **gradients** | 100,000 | 0 | 0 | 0 | the same |  | flat |" in lines
    assert lines[-1].startswith("`make soak` at c0ffee: ")
    assert "| **offload** | not run | | | | | | |" in lines
    (peer,) = (line for line in lines if line.startswith("| DDP |"))
    assert "+812 ± 3" in peer and "tensors +250 ± 0 in 1,000 steps" in peer
    assert peer.endswith("| **grows**: heap, tensors |")
    picture = pictures.panels(soak_tables.resident(modes), "MiB")
    assert picture.count("<polyline") == 4 and "from -1 to 1" in picture
