"""Sharded training against torch's own: step time, memory and bytes on the wire, in one interleaved run.

    python benchmarks/sharded_training.py                 # two ranks on this machine
    sudo python benchmarks/sharded_training.py --link 1gbit --batch 4   # over a link of that rate

Every system runs in fresh processes, in turn, for some rounds; times are medians over all rounds with their
range, and count only if the systems' losses agree. Memory is the peak of resident memory over the bare
model, in a run of its own in which freed blocks go back to the system at once; bytes are those that the network
interface counted.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from links import slow_link
from systems import SYSTEMS

HERE = Path(__file__).parent


def run(
    system: str, prefixes: list[list[str]], interface: str, options: argparse.Namespace, is_for_memory: bool = False
) -> list:
    """Runs one system in fresh processes; returns every rank's figures."""
    settings = {"system": system, "ranks": len(prefixes), "interface": interface}
    settings |= {"model": options.model, "batch": options.batch, "steps": 2 if is_for_memory else options.steps}
    malloc = {"MALLOC_MMAP_THRESHOLD_": "1000000"} if is_for_memory else {}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [*prefix, sys.executable, HERE / "rank.py", f"--rank={rank}", f"--folder={folder}", *flags],
                env={**os.environ, **malloc},
            )
            for rank, prefix in enumerate(prefixes)
        ]
        codes = [process.wait() for process in ranks]
        if any(codes):
            raise RuntimeError(f"{system}: ranks ended with {codes}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(len(prefixes))]


def summary(runs: list[list[dict]], memory_run: list[dict]) -> dict:
    times = [statistics.median(ranks[0]["times"]) for ranks in runs]
    ranks = runs[-1]
    return {
        "ms": [1e3 * value for value in (statistics.median(times), min(times), max(times))],
        "memory": max(rank["peak"] - rank["bare"] for rank in memory_run),
        "sent": ranks[0]["sent"],
        "loss": statistics.mean(rank["loss"] for rank in ranks),
        "parameters": ranks[0]["parameters"],
    }


def table(results: dict, ranks: int, alone: dict) -> str:
    weights = 4 * alone["parameters"]
    working = alone["peak"] - alone["bare"] - 3 * weights  # a forward and backward, besides gradients and states
    bucket = 25 << 20
    bound = 3 * weights / ranks + 2 * bucket + working
    ideal = 2 * weights * (ranks - 1) / ranks
    base = results["ddp"]["ms"][0]
    lines = [
        f"{alone['parameters'] / 1e6:.1f}M parameters, {ranks} ranks; MB",
        f"{'':18s} {'ms/step':>8s} {'range':>15s} {'x ddp':>6s} {'memory':>8s} {'sent/step':>10s} {'loss':>8s}",
    ]
    for name, row in results.items():
        median, low, high = row["ms"]
        lines.append(
            f"{name:18s} {median:8.1f} {low:7.1f}-{high:7.1f} {median / base:6.3f} {row['memory'] / 1e6:8.1f} "
            f"{row['sent'] / 1e6:10.1f} {row['loss']:8.5f}"
        )
    lines.append(
        f"formula: (gradients + states)/N + two buckets + what one rank alone needs besides ({working / 1e6:.1f}) = "
        f"{bound / 1e6:.1f}; 2 x weights x (N-1)/N = {ideal / 1e6:.1f} sent"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", default="60m", help="tiny, 10m or 60m")
    parser.add_argument("--batch", type=int, default=2, help="sequences of 64 bytes per rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--link", help="join two ranks by a link of this rate, for instance 1gbit (needs root)")
    parser.add_argument("--systems", nargs="*", default=[name for name in SYSTEMS if name != "alone"])
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    if options.link and options.ranks != 2:
        parser.error("--link joins two ranks")

    local = contextlib.nullcontext([[] for _ in range(options.ranks)])
    with slow_link(options.link) if options.link else local as prefixes:
        interface = "veth0" if options.link else "lo"
        alone = run("alone", [[]], "lo", options, is_for_memory=True)[0]
        memory_runs = {name: run(name, prefixes, interface, options, is_for_memory=True) for name in options.systems}
        runs: dict[str, list] = {name: [] for name in options.systems}
        for round_number in range(options.rounds):
            for name in options.systems:
                runs[name].append(run(name, prefixes, interface, options))
                print(f"round {round_number + 1}: {name}", file=sys.stderr, flush=True)
    results = {name: summary(values, memory_runs[name]) for name, values in runs.items()}
    if interface == "lo":
        for row in results.values():
            row["sent"] /= options.ranks  # the loopback counts what all ranks send
    losses = [row["loss"] for name, row in results.items()]
    if max(losses) - min(losses) > 0.01 * max(losses):
        raise SystemExit(f"the systems' losses differ, so that their times mean nothing: {results}")
    print(table(results, options.ranks, alone))
    if options.out:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        about = {"torch": torch.__version__, "python": platform.python_version(), "machine": machine}
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        options.out.write_text(json.dumps({**about, "options": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
