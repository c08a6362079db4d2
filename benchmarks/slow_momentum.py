"""Slow momentum against LocalSGD without it, on scikit-learn's digits: 8 nodes of one rank, some seeds.

    python benchmarks/slow_momentum.py

Every node has digits of its own, most of them of few classes, so that nodes drift apart between averages. All runs
see the same samples in the same order. Needs scikit-learn, which has the digits in its package.
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
from sklearn.datasets import load_digits
from torch import nn

from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel

NODES = 8
SETTINGS = {
    "LocalSGD": {"slowmo_momentum": 0},
    # Momentum makes steps 1 / (1 - 0.5) times as long in the long run; so does this.
    "LocalSGD, twice the learning rate": {"slowmo_momentum": 0, "rate": 2},
    "slow momentum 0.2": {"slowmo_momentum": 0.2},
    "slow momentum 0.5": {"slowmo_momentum": 0.5},
    "slow momentum 0.6": {"slowmo_momentum": 0.6},
}


def shares(seed: int) -> tuple:
    """Training digits for each node, and test digits for all."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: 179 * NODES], order[179 * NODES :]
    train = train[y[train].argsort(stable=True)]  # by class, so that a node has few of them
    return [(x[part], y[part]) for part in train.chunk(NODES)], (x[test], y[test])


def train(rank: int, seed: int, settings: dict, options: argparse.Namespace) -> dict:
    settings = dict(settings)
    learning_rate = options.lr * settings.pop("rate", 1)
    parts, (test_x, test_y) = shares(seed)
    x, y = parts[rank]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    parallel = SlowMoDistributedDataParallel(
        model, 1, slowmo_frequency=options.every, localsgd_frequency=options.every, **settings
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    for _ in range(options.steps):
        chosen = torch.randint(len(x), (16,), generator=generator)
        parallel.zero_grad()
        nn.functional.cross_entropy(parallel(x[chosen]), y[chosen]).backward()
        optimizer.step()
        parallel.perform_slowmo(optimizer)
    with torch.no_grad():
        logits = model(test_x)
        all_x, all_y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        loss = nn.functional.cross_entropy(model(all_x), all_y).item()
    return {"accuracy": logits.argmax(1).eq(test_y).float().mean().item(), "loss": loss}


def run_rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NODES)
    results = {
        name: [train(rank, seed, settings, options) for seed in range(options.seeds)]
        for name, settings in SETTINGS.items()
    }
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=12, help="steps from one synchronisation to the next")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(options, folder), nprocs=NODES)
        results = json.loads((Path(folder) / "results.json").read_text())
    print("| | test accuracy, by seed | mean | training loss, mean |\n| --- | --- | --- | --- |")
    for name, runs in results.items():
        accuracies = [100 * run["accuracy"] for run in runs]
        each = ", ".join(f"{value:.1f}" for value in accuracies)
        loss = statistics.mean(run["loss"] for run in runs)
        print(f"| {name} | {each} | {statistics.mean(accuracies):.1f} % | {loss:.4f} |")
    if options.out:
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        options.out.write_text(json.dumps({"options": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
