"""What DiLoCo's held-out loss and bytes are with each wire between nodes: two nodes of one rank, some seeds.

    python benchmarks/wires.py --out benchmarks/results/wires.json
    python benchmarks/wires.py --plot docs/wires.svg --out benchmarks/results/wires.json   # only draws

All runs of a seed begin with the same weights and see the same samples, so that time plays no part: other programs may
run meanwhile. The plot needs matplotlib.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from gpt import Gpt
from slow_link_rank import LENGTH, batch, text

NODES = 2
#: By the wire's name: the outer learning rate, the outer momentum.
SETTINGS = {
    "float32, momentum 0.9": ("float32", 0.7, 0.9),
    "float32, momentum 0.5": ("float32", 0.7, 0.5),
    "int8, momentum 0.5": ("int8", 0.7, 0.5),
    "sparse, momentum 0.5": ("sparse", 0.7, 0.5),
    "sparse, no momentum": ("sparse", 1.0, 0.0),
}


def train(rank: int, seed: int, setting: str, options: argparse.Namespace) -> dict:
    wire, learning_rate, momentum = SETTINGS[setting]
    corpus = text()
    split = len(corpus) * 9 // 10
    held_out = batch(corpus[split:], 256, 1)
    torch.manual_seed(seed)
    model = Gpt(options.model, LENGTH)
    parallel = SlowMoDistributedDataParallel(
        model,
        nprocs_per_node=1,
        outer_optimizer="nesterov",
        slowmo_lr=learning_rate,
        slowmo_momentum=momentum,
        slowmo_frequency=options.every,
        wire=wire,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    curve = []
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        samples = batch(corpus[:split], options.batch, (seed * options.steps + step) * NODES + rank)
        parallel(samples).backward()
        optimizer.step()
        parallel.perform_slowmo(optimizer)
        if step % (options.every * 4) == 0:  # all nodes have the same parameters
            with torch.no_grad():
                curve.append([step, round(model(held_out).item(), 4)])
    return {"curve": curve, "sent": parallel.report()["inter_node_bytes"]}


def run_rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NODES)
    results = {}
    for name in SETTINGS:
        results[name] = [train(rank, seed, name, options) for seed in range(options.seeds)]
        if rank == 0:
            print(f"{name}: {[run['curve'][-1][1] for run in results[name]]}", flush=True)
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def table(results: dict) -> str:
    lines = ["| | held-out loss, by seed | mean | MB sent by a node | fewer |", "| --- | --- | --- | --- | --- |"]
    most = max(run["sent"] for runs in results.values() for run in runs)
    for name, runs in results.items():
        losses = [run["curve"][-1][1] for run in runs]
        each = ", ".join(f"{loss:.3f}" for loss in losses)
        sent = runs[0]["sent"]
        lines.append(f"| {name} | {each} | {statistics.mean(losses):.3f} | {sent / 1e6:.2f} | {most / sent:.0f} x |")
    return "\n".join(lines)


def plot(results: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fairshard"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, runs in results.items():
        steps = [step for step, _ in runs[0]["curve"]]
        losses = [[loss for _, loss in run["curve"]] for run in runs]
        (line,) = axes.plot(steps, [statistics.mean(each) for each in zip(*losses, strict=True)], label=name)
        low, high = zip(*((min(each), max(each)) for each in zip(*losses, strict=True)), strict=True)
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="steps", ylabel="held-out loss: mean of the seeds, and their range")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="2m")
    parser.add_argument("--batch", type=int, default=8, help="sequences of 64 bytes per node")
    parser.add_argument("--every", type=int, default=12, help="steps from one synchronisation to the next")
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="draw what is in --out, and run nothing")
    options = parser.parse_args()
    if options.plot:
        plot(json.loads(options.out.read_text())["results"], options.plot)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(options, folder), nprocs=NODES)
        results = json.loads((Path(folder) / "results.json").read_text())
    print(table(results))
    if options.out:
        settings = {key: value for key, value in vars(options).items() if key not in ("out", "plot")}
        options.out.write_text(json.dumps({"options": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
