"""OffloadModel against its peers on a GPU, in fresh processes, in turn, with its bounds measured in the same run.

    python benchmarks/offload_training.py --rows 1.2b 4b

A time counts only if the first step's loss is within 2 % of all systems' median. They compute in bfloat16, FairScale
in autocast, where the plain model's loss is 0.01 % away.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import machine
from offload import ROWS
from offload_rank import OURS, SYSTEMS

HERE = Path(__file__).parent
TOLERANCE = 0.02
TIMEOUT_S = 300


def run(system: str, row: str, steps: int) -> dict:
    flags = [f"--system={system}", f"--row={row}", f"--steps={steps}"]
    try:
        done = subprocess.run(
            [sys.executable, HERE / "offload_rank.py", *flags], capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"no end after {TIMEOUT_S} s"}
    if done.returncode:
        return {"reason": _error_of(done.stderr) or f"ended with {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def _error_of(output: str) -> str | None:
    """The last line that looks like an exception's: warnings may follow it."""
    lines = [line for line in output.splitlines() if "Error: " in line] or output.splitlines()
    return lines[-1].strip() if lines else None


def compare(row: str, systems: list[str], rounds: int, steps: int) -> Iterator[dict]:
    """Gives the figures after every round: time on a GPU may end before the last."""
    runs: dict[str, list[dict]] = {}
    not_run: dict[str, str] = {}
    for _ in range(rounds):
        for system in systems:
            if system not in not_run:
                figures = run(system, row, steps)
                if "reason" in figures:
                    not_run[system] = figures["reason"]
                else:
                    runs.setdefault(system, []).append(figures)
                print(row, system, figures.get("step_ms", figures.get("reason")), file=sys.stderr, flush=True)
        yield {"row": row, **_summary({name: runs[name] for name in runs if name not in not_run}, not_run)}


def _summary(runs: dict[str, list[dict]], not_run: dict[str, str]) -> dict:
    losses = [figures["first_loss"] for values in runs.values() for figures in values]
    found, not_counted = {}, dict(not_run)
    for system, values in runs.items():
        away = max(abs(figures["first_loss"] / statistics.median(losses) - 1) for figures in values)
        times = [figures["step_ms"] for figures in values]
        median = statistics.median(times)
        if away > TOLERANCE:
            not_counted[system] = f"its loss is {away:.1%} away from the others' (a step took {median:.0f} ms)"
            continue
        found[system] = {"ms": median, "rounds_ms": times, **values[-1]}
    return {"systems": found, "not_run": not_counted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["1.2b", "4b"])
    parser.add_argument("--systems", nargs="+", choices=[*OURS, *SYSTEMS], default=[*OURS, *SYSTEMS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rows: dict[str, dict] = {}
    for row in options.rows:
        for figures in compare(row, options.systems, options.rounds, options.steps):
            rows[row] = figures
            if torch.cuda.is_available():
                machine.write("offload-peers", {"rows": [*rows.values()]})
    print(json.dumps([*rows.values()], indent=1))
    if not torch.cuda.is_available():
        print("there is no GPU, so that these figures mean nothing and are not written", file=sys.stderr)


if __name__ == "__main__":
    main()
