"""How cost grows: with 100 to 100,000 parameters, and with 2 to 64 ranks.

    python benchmarks/growth.py            # up to 10,000 parameters
    python benchmarks/growth.py --full

Parameters: growth_rank.py in fresh processes, in turn, for three rounds, beside torch's DDP and a model that is
not wrapped; a figure counts only if losses agree. Ranks: threads of one program in C++, three times.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import machine

HERE = Path(__file__).parent
SYSTEMS = ["plain", "ddp", "replicated", "gradients"]
PHASES = ["wrap", "forward", "backward", "step", "zero_grad"]


def by_tensors(counts: list[int], rounds: int) -> dict:
    runs: dict[tuple[str, int], list[dict]] = {}
    for _ in range(rounds):
        for system in SYSTEMS:
            command = [sys.executable, HERE / "growth_rank.py", f"--system={system}", "--tensors", *map(str, counts)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for figures in json.loads(done.stdout.splitlines()[-1]):
                runs.setdefault((system, figures["tensors"]), []).append(figures)
    for count in counts:
        losses = [run["loss"] for system in SYSTEMS for run in runs[system, count]]
        if max(losses) - min(losses) > 1e-4 * max(losses):
            raise RuntimeError(f"losses differ for {count} tensors, so that times mean nothing: {losses}")
    return {
        system: [
            {"tensors": count}
            | {phase: [run[phase] for run in runs[system, count]] for phase in PHASES}
            | {"median": {phase: statistics.median(run[phase] for run in runs[system, count]) for phase in PHASES}}
            for count in counts
        ]
        for system in SYSTEMS
    }


def by_ranks(counts: list[int], rounds: int) -> list[dict]:
    program = HERE.parent / "build/bin/fairshard-bench-wrapping"
    runs = []
    for _ in range(rounds):
        done = subprocess.run([program, *map(str, counts)], check=True, capture_output=True, text=True)
        runs.append([json.loads(line) for line in done.stdout.splitlines()])
    return [
        {"ranks": rows[0]["ranks"]}
        | {key: [row[key] for row in rows] for key in ("plan", "wrap", "first_step", "step")}
        | {
            "median": {
                key: statistics.median(row[key] for row in rows) for key in ("plan", "wrap", "first_step", "step")
            }
        }
        for rows in zip(*runs, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", nargs="*", type=int, default=[100, 1000, 10000])
    parser.add_argument("--full", action="store_true", help="up to 100,000 parameters")
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    is_default = options in (parser.parse_args([]), parser.parse_args(["--full"]))
    if options.full:
        options.tensors.append(100000)
    figures = {"tensors": by_tensors(options.tensors, options.rounds), "ranks": by_ranks(options.ranks, options.rounds)}
    for system, rows in figures["tensors"].items():
        for row in rows:
            each = {phase: f"{1e6 * value / row['tensors']:.2f}" for phase, value in row["median"].items()}
            print(f"{system:12s} {row['tensors']:7d} tensors, microseconds each: {each}")
    for row in figures["ranks"]:
        print(
            f"{row['ranks']:3d} ranks: "
            + ", ".join(f"{key} {1e3 * row['median'][key]:.3f} ms" for key in row["median"])
        )
    if is_default:
        machine.write("growth", figures)


if __name__ == "__main__":
    main()
