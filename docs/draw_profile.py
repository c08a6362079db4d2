"""Draws docs/profile.svg, the picture of sharding.md: a step of two ranks as torch's profiler sees it, rank 0's.

.venv-bench/bin/python docs/draw_profile.py
"""

import re
import tempfile
from pathlib import Path

import matplotlib
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

RANKS, WIDTH, LAYERS = 2, 768, 6
#: From above: a lane, and the names that stand in it.
LANES = {
    "model": r"(forward|backward)$",
    "step": r"fairshard::(step.*)",
    "reduce": r"fairshard::(reduce .*)",
    "gather": r"fairshard::(gather .*)",
    "wait": r"fairshard::(wait for .*)",
}
COLOURS = ("#9ecae1", "#fdd49e", "#c7e9c0", "#dadaeb", "#fcbba1")


def train_step(model: nn.Module, optimizer: OSS, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    with record_function("forward"):
        loss = model(x).square().mean()
    with record_function("backward"):
        loss.backward()
    optimizer.step()


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
    options = {"lr": 1e-3, "fused": True, "overlap_gather": True, "bucket_bytes": 4 * WIDTH * (WIDTH + 1)}
    optimizer = OSS(module.parameters(), torch.optim.AdamW, **options)
    model, x = ShardedDataParallel(module, optimizer), torch.randn(256, WIDTH)
    for _ in range(3):
        train_step(model, optimizer, x)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train_step(model, optimizer, x)
        train_step(model, optimizer, x)
    spans = [(event.name, event.time_range.start, event.time_range.end) for event in seen.events()]
    torch.save(spans, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def draw(spans: list[tuple[str, float, float]], path: Path) -> None:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fairshard"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 3.2), layout="constrained")
    begin = min(start for name, start, _ in spans if name == "forward")
    for row, pattern in enumerate(LANES.values()):
        for name, start, end in spans:
            if found := re.match(pattern, name):
                bucket = re.search(r"bucket (\d+)", name)
                colour = COLOURS[int(bucket[1]) % len(COLOURS)] if bucket else "#dddddd"
                axes.barh(-row, (end - start) / 1e3, left=(start - begin) / 1e3, color=colour, edgecolor="#555", lw=0.5)
                if found[1] in ("forward", "backward"):
                    axes.text((start + end - 2 * begin) / 2e3, -row, found[1], ha="center", va="center", fontsize=8)
    axes.set_yticks([-row for row in range(len(LANES))], LANES)
    axes.set_xlabel("milliseconds; one colour for each bucket")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder,), RANKS)
        draw(torch.load(f"{folder}/0.pt"), Path(__file__).parent / "profile.svg")


if __name__ == "__main__":
    main()
