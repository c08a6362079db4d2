"""OffloadModel against its peers on a GPU, in fresh processes, in turn, with its bounds measured in the same run.

    python benchmarks/offload_training.py --rows 1.2b 4b

A time counts only if the loss of the first step is within 2 % of the others' median (all compute in bfloat16); for a
system that can only use autocast, of the plain model's loss in autocast.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import machine
import torch
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


def compare(row: str, systems: list[str], rounds: int, steps: int) -> dict:
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
    in_bfloat16 = [run["first_loss"] for values in runs.values() for run in values if "expected_loss" not in run]
    found = {}
    for system in [name for name in systems if name not in not_run]:
        expected = runs[system][0].get("expected_loss") or statistics.median(in_bfloat16)
        away = max(abs(figures["first_loss"] / expected - 1) for figures in runs[system])
        if away > TOLERANCE:
            not_run[system] = f"its loss is {away:.1%} away from what it should be"
            continue
        times = [figures["step_ms"] for figures in runs[system]]
        last = runs[system][-1]
        found[system] = {"ms": statistics.median(times), "rounds_ms": times, **last}
    return {"row": row, "systems": found, "not_run": not_run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["1.2b", "4b"])
    parser.add_argument("--systems", nargs="+", choices=[*OURS, *SYSTEMS], default=[*OURS, *SYSTEMS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rows = [compare(row, options.systems, options.rounds, options.steps) for row in options.rows]
    print(json.dumps(rows, indent=1))
    if torch.cuda.is_available():
        machine.write("offload-peers", {"rows": rows})
    else:
        print("there is no GPU, so that these figures mean nothing and are not written", file=sys.stderr)


if __name__ == "__main__":
    main()
