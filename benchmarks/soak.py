"""`make soak`: trains a small model for very long in each mode, and fails if anything grows.

    python benchmarks/soak.py                                 # 100,000 steps a mode; about an hour on two cores
    python benchmarks/soak.py --resume                        # the modes that the results do not have, or shorter
    python benchmarks/soak.py --modes gradients cycles:slowmo --steps 20000 --out trial.json
    python benchmarks/soak.py --seconds 600 --steps 10000000  # as many steps as there is time for

Each mode trains on two ranks in fresh processes, DDP and FSDP2 beside for comparison. Counts are taken at regular
steps, and after the first fifth of them a line is fitted (trends.py). What grows beyond its error, and by more than
would matter in a million steps, is named, and the exit status is 1.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.multiprocessing as mp

import machine
import soak_modes
import soak_rank
import trends
from soak_rank import RANKS, Work

RESULTS = machine.RESULTS / "soak.json"
STEPS = 100_000
SAMPLES = 250
#: The part of a run in which caches fill and the allocator finds its size.
WARM_UP = 0.2
#: A cycle of all modes takes about as long as so many steps.
STEPS_IN_CYCLE, LEAST_CYCLES = 100, 40
#: Below, times tell more of the machine than of us.
LEAST_STEPS_FOR_TIME = 20_000
LEAST_SAMPLES = math.ceil(trends.BLOCKS / (1 - WARM_UP))

multiprocessing.set_forkserver_preload(["soak_rank", "torch._dynamo", "fairshard.nn.data_parallel"])


@dataclass(frozen=True)
class Quantity:
    """What must not grow, and what growth is too little to matter."""

    unit: str
    in_step: float
    in_run: float


QUANTITIES = {
    "resident": Quantity("bytes", 16, 1 << 20),
    "heap": Quantity("bytes", 1, 128 << 10),
    "objects": Quantity("objects", 0.001, 1000),
    "tensors": Quantity("tensors", 0, 2),
    "threads": Quantity("threads", 0, 1),
    "descriptors": Quantity("descriptors", 0, 1),
    "keys": Quantity("keys", 0, 2),
    "cpu": Quantity("of its time", 0, 0.1),
}
#: For cycles: torch itself keeps 0.7 KB of every process group that was made and destroyed, and a cycle makes three. A
#: model that stays has 38 KB of weights alone.
QUANTITIES_OF_CYCLES = QUANTITIES | {
    "resident": Quantity("bytes", 8 << 10, 2 << 20),
    "heap": Quantity("bytes", 4 << 10, 512 << 10),
    "objects": Quantity("objects", 1, 1000),
}


def work_of(name: str, steps: int, seconds: float = math.inf) -> Work:
    if name.startswith(soak_modes.CYCLES):
        cycles = max(steps // STEPS_IN_CYCLE, LEAST_CYCLES)
        return Work(cycles, max(1, cycles // SAMPLES), seconds, is_cycles=True)
    return Work(steps, max(1, steps // SAMPLES), seconds)


def run(make: Callable, work: Work) -> list[dict[str, list[float]]]:
    """Each rank's samples."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (make, work, folder)
        mp.start_processes(soak_rank.main, arguments, nprocs=RANKS, start_method="forkserver")
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(RANKS)]


def blocks_of(samples: list[float]) -> list[float]:
    """What was counted after the warm-up."""
    return trends.medians(samples[math.floor(WARM_UP * len(samples)) :])


def judge(samples: list[float], every: int, quantity: Quantity) -> dict:
    """The slope of what one rank has counted, a step, and whether it grows."""
    span = (1 - WARM_UP) * every * len(samples)
    slope = trends.slope(blocks_of(samples), span / trends.BLOCKS)
    matters = slope.middle > quantity.in_step and slope.middle * span > quantity.in_run
    return {"slope": slope.middle, "error": slope.error, "grows": slope.low > 0 and matters}


def judge_all(ranks: list[dict[str, list[float]]], work: Work) -> dict[str, dict]:
    """Of each quantity the rank on which it grows most."""
    judged = {}
    for name, quantity in (QUANTITIES_OF_CYCLES if work.is_cycles else QUANTITIES).items():
        if name != "cpu" or work.every * len(ranks[0]["cpu"]) >= LEAST_STEPS_FOR_TIME:
            found = [{"rank": number, **judge(rank[name], work.every, quantity)} for number, rank in enumerate(ranks)]
            judged[name] = max(found, key=lambda each: (each["grows"], each["slope"]))
    return judged


def growth(name: str, found: dict) -> list[str]:
    """What grows in a mode, in words; nothing, if it is flat."""
    return [
        f"{name}: {quantity} grows by {judged['slope']:.4g} +- {judged['error']:.2g} {QUANTITIES[quantity].unit} "
        f"a step on rank {judged['rank']}"
        for quantity, judged in found["judged"].items()
        if judged["grows"]
    ]


def soak(make: Callable, work: Work) -> dict:
    """All that is kept of a run."""
    start = time.perf_counter()
    ranks = run(make, work)
    for rank in ranks:
        usual = statistics.median(rank["cpu"])
        rank["cpu"] = [value / usual for value in rank["cpu"]]
    samples = len(ranks[0]["wall"])
    return {
        "steps": work.every * samples,
        "seconds": round(time.perf_counter() - start),
        "ms": 1e3 * statistics.median(ranks[0]["wall"]),
        "judged": judge_all(ranks, work),
        "resident": [[round(value) for value in blocks_of(rank["resident"])] for rank in ranks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each mode at most")
    parser.add_argument("--modes", nargs="+", default=[*soak_modes.OURS, *soak_modes.PEERS])
    parser.add_argument("--resume", action="store_true", help="pass over modes that the results have at this length")
    parser.add_argument("--out", type=Path, help=f"where to write ({RESULTS.name}, if all is as usual)")
    options = parser.parse_args()
    if options.steps < LEAST_SAMPLES:
        parser.error(f"--steps is {options.steps}, but a line is fitted to {LEAST_SAMPLES} samples at least")
    makers = {name: soak_modes.maker(name) for name in options.modes}
    is_usual = options.steps == STEPS and options.seconds == math.inf
    out = options.out or (RESULTS if is_usual else None)
    modes = json.loads(out.read_text())["modes"] if out and out.exists() else {}
    grown = []
    for name, make in makers.items():
        work = work_of(name, options.steps, options.seconds)
        if not options.resume or modes.get(name, {"steps": 0})["steps"] <= work.steps - work.every:
            modes[name] = {"about": machine.about(), **soak(make, work)}
        if out:
            machine.write(out.stem, {"modes": modes}, out.parent)
        found = growth(name, modes[name])
        size = f"{modes[name]['steps']} steps, {modes[name]['seconds']} s"
        print("\n".join(found) or f"{name}: flat", f"({size})", flush=True)
        grown += found if name not in soak_modes.PEERS else []
    if grown:
        sys.exit("not flat:\n" + "\n".join(grown))


if __name__ == "__main__":
    main()
