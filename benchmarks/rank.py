"""One rank of a benchmark: trains with one system and writes what it measured."""

import argparse
import importlib
import json
import os
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import links
import memory
from models import make_inputs, make_model
from systems import SYSTEMS

#: What torch loads at the first use of one thing or another.
LAZY = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor")

#: What a run is for: times; memory, with freed blocks given back to the system at once; memory as any user sees it.
PURPOSES = ("time", "memory", "resident")


def warm_up() -> None:
    """Has everything loaded and started that any training needs, so that it counts as no system's memory."""
    for name in LAZY:
        importlib.import_module(name)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(288, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()


def sent_bytes(interface: str) -> int:
    """By this process's network: /sys might show another one."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == interface:
            return int(counts.split()[8])
    raise RuntimeError(f"there is no network interface {interface}")


def run_forked(flags: list[str], network: str | None, environment: dict[str, str], log: Path) -> None:
    """A rank in a process that was forked for it."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    links.enter(network)
    main(flags)


def main(flags: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--purpose", choices=PURPOSES, required=True)
    options = parser.parse_args(flags)
    if options.purpose == "memory":
        memory.keep_nothing()

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.ranks))
    store = dist.FileStore(str(options.folder / "store"), options.ranks)
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.ranks)
    model = make_model(options.model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    inputs = make_inputs(options.model, options.batch, options.rank)
    system = SYSTEMS[options.system]
    if options.purpose != "time":
        warm_up()
    for name in system.imports:
        importlib.import_module(name)
    memory.give_back()
    bare = memory.resident()
    memory.reset_peak()

    training = system.make(model)
    times = []
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            training.finish()  # what it still sends belongs to the steps before
            dist.barrier()
            sent = sent_bytes(options.interface)
            first_peak = memory.peak()
            memory.reset_peak()
        start = time.perf_counter()
        loss = training.train(*inputs)
        if step >= options.warmup:
            times.append(time.perf_counter() - start)
    later_peak = memory.peak()
    training.finish()
    dist.barrier()
    result = {
        "parameters": parameters,
        "times": times,
        "sent": (sent_bytes(options.interface) - sent) / options.steps,
        "bare": bare,
        "peak": max(first_peak, later_peak),
        "later_peak": later_peak,
        "loss": loss.item(),
    }
    (options.folder / f"{options.rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
