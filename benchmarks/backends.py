"""torch's own DDP and FSDP2 over Gloo and over our backend, in the same processes, round after round.

python benchmarks/backends.py [--model 60m] [--batch 2] [--ranks 2] [--rounds 5] [--steps 4]

Prints the table of docs/comm.md: times of a step, what a rank sends in one, and whether the weights are the same.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fairshard import comm
from models import make_inputs, make_model

BACKENDS = ("gloo", "fairshard")


def ddp(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    return DistributedDataParallel(model, process_group=group)


def fsdp(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


SYSTEMS: dict[str, Callable] = {"DDP": ddp, "FSDP2, resharding": fsdp}


class Run:
    """One system over one backend."""

    def __init__(self, system: str, group: dist.ProcessGroup, name: str, batch: int, rank: int) -> None:
        self.model = SYSTEMS[system](make_model(name), group)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.inputs = make_inputs(name, batch, rank)
        self.group = comm.Group(group)
        self.times: list[float] = []
        self.sent = 0

    def steps(self, count: int) -> None:
        dist.barrier()
        sent, start = self.group.sent_bytes, time.perf_counter()
        for _ in range(count):
            self.model(*self.inputs).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.times.append((time.perf_counter() - start) / count)
        self.sent = (self.group.sent_bytes - sent) // count

    def weights(self) -> list[torch.Tensor]:
        values = [parameter.detach() for parameter in self.model.parameters()]
        return [value.full_tensor() if hasattr(value, "full_tensor") else value.clone() for value in values]


def rank_main(rank: int, options: argparse.Namespace, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.ranks))
    store = dist.FileStore(f"{folder}/store", options.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    if rank == 0:
        print(f"| {options.model}, {options.ranks} ranks | Gloo, ms | fairshard, ms | ratio | MB sent | weights |")
        print("| --- | --- | --- | --- | --- | --- |")
    for system in SYSTEMS:
        runs = [Run(system, group, options.model, options.batch, rank) for group in groups.values()]
        for run in runs:
            run.steps(1)
            run.times.clear()
        for _ in range(options.rounds):
            for run in runs:
                run.steps(options.steps)
        over_gloo, ours = (statistics.median(run.times) for run in runs)
        same = all(a.equal(b) for a, b in zip(*(run.weights() for run in runs), strict=True))
        if rank == 0:
            ratio = statistics.median(b / a for a, b in zip(*(run.times for run in runs), strict=True))
            equal = "the same bits" if same else "equal to rounding"
            print(
                f"| {system} | {1e3 * over_gloo:.0f} | {1e3 * ours:.0f} | {ratio:.2f} | {runs[1].sent / 1e6:.1f} "
                f"| {equal} |",
                flush=True,
            )
        del runs
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="60m")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank_main, (options, folder), nprocs=options.ranks, start_method="spawn")


if __name__ == "__main__":
    main()
