"""DDP, SlowMo and streaming DiLoCo over a slow link: step rate, bytes, and the loss after equal samples.

    sudo python benchmarks/slow_link.py --link 100mbit --out benchmarks/results/slow-link.json
    sudo python benchmarks/slow_link.py --systems DDP --out ...     # some of them; the file keeps the others
    python benchmarks/slow_link.py --plot docs/slow-link.svg --out benchmarks/results/slow-link.json   # only draws

Two network namespaces are two nodes of one rank each. The plot needs matplotlib.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from links import inside, slow_link
from slow_link_rank import SYSTEMS

HERE = Path(__file__).parent
NAMESPACES = ("fairshard-outer0", "fairshard-outer1")


def run(system: str, networks: list[str], options: argparse.Namespace) -> dict:
    flags = [f"--system={system}", f"--model={options.model}", f"--batch={options.batch}", f"--steps={options.steps}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE / "slow_link_rank.py", f"--folder={folder}", *flags]
        ranks = [subprocess.Popen([*inside(name), *command, f"--rank={rank}"]) for rank, name in enumerate(networks)]
        codes = [process.wait() for process in ranks]
        if any(codes):
            raise RuntimeError(f"{system}: ranks ended with {codes}")
        first, second = (json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2))
    both = zip(first["curve"], second["curve"], strict=True)
    return {
        **first,
        "held_out_loss": (first["held_out_loss"] + second["held_out_loss"]) / 2,
        "curve": [[round(a[0], 3), round((a[1] + b[1]) / 2, 4)] for a, b in both],
    }


def table(results: dict) -> str:
    lines = ["| | steps/s | x DDP | MB sent per step | loss, held out |", "| --- | --- | --- | --- | --- |"]
    base = results.get("DDP", {}).get("steps_per_second")
    for name in [name for name in SYSTEMS if name in results]:
        row = results[name]
        rate = row["steps_per_second"]
        ratio = f"{rate / base:.1f}" if base else ""
        sent = row["sent_per_step"] / 1e6
        lines.append(f"| {name} | {rate:.2f} | {ratio} | {sent:.2f} | {row['held_out_loss']:.3f} |")
    return "\n".join(lines)


def plot(results: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fairshard"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for name in [name for name in SYSTEMS if name in results]:
        times, losses = zip(*results[name]["curve"], strict=True)
        smooth = [sum(losses[max(0, i - 9) : i + 1]) / (i + 1 - max(0, i - 9)) for i in range(len(losses))]
        axes[0].plot(times[::4], smooth[::4], label=name)
        axes[1].plot(range(1, len(smooth) + 1, 4), smooth[::4], label=name)
    axes[0].set(xlabel="seconds", ylabel="training loss, mean of 10 steps", xscale="log")
    axes[1].set(xlabel="steps")
    axes[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--delay", help="of each direction, for instance 10ms (a kernel with netem)")
    parser.add_argument("--model", default="2m")
    parser.add_argument("--batch", type=int, default=8, help="sequences of 64 bytes per rank")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--out", type=Path, help="JSON; systems that are not run keep their figures")
    parser.add_argument("--plot", type=Path, help="draw what is in --out, and run nothing")
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {"results": {}}
    if options.plot:
        plot(known["results"], options.plot)
        return
    with slow_link(options.link, NAMESPACES, options.delay) as networks:
        for name in options.systems:
            known["results"][name] = run(name, networks, options)
            print(f"{name}: done", file=sys.stderr, flush=True)
    print(table(known["results"]))
    if options.out:
        settings = {key: value for key, value in vars(options).items() if key not in ("out", "plot", "systems")}
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        about = {"torch": torch.__version__, "machine": machine, "options": settings}
        options.out.write_text(json.dumps({**about, "results": known["results"]}) + "\n")


if __name__ == "__main__":
    main()
