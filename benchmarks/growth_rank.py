"""What hooks and buckets cost for many small parameters: one system in a fresh process.

The model only joins its parameters, so that its backward is little more than the gradients' arrival. One rank: what is
left is the bookkeeping, with nothing sent. Prints seconds as JSON.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

ELEMENTS = 64
WARM_UP = 2


class Joined(nn.Module):
    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.full((ELEMENTS,), 1e-3) for _ in range(tensors)])

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.weights)).square().sum()


def plain(model: nn.Module) -> tuple:
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)


def ddp(model: nn.Module) -> tuple:
    return DistributedDataParallel(model, gradient_as_bucket_view=True), plain(model)[1]


def replicated(model: nn.Module) -> tuple:
    return ShardedDataParallel(model), plain(model)[1]


def gradients(model: nn.Module) -> tuple:
    optimizer = OSS(model.parameters(), torch.optim.SGD, lr=1e-3, foreach=True)
    return ShardedDataParallel(model, optimizer), optimizer


SYSTEMS = {"plain": plain, "ddp": ddp, "replicated": replicated, "gradients": gradients}


def measure(make, tensors: int) -> dict:
    """Seconds of each phase, the median over some steps."""
    model = Joined(tensors)
    start = time.perf_counter()
    parallel, optimizer = make(model)
    wrapped = time.perf_counter() - start
    seconds: dict[str, list[float]] = {"forward": [], "backward": [], "step": [], "zero_grad": []}
    for _ in range(WARM_UP + max(2, min(20, 30000 // tensors))):
        clock = [time.perf_counter()]
        loss = parallel()
        clock.append(time.perf_counter())
        loss.backward()
        clock.append(time.perf_counter())
        optimizer.step()
        clock.append(time.perf_counter())
        optimizer.zero_grad()
        clock.append(time.perf_counter())
        for number, name in enumerate(seconds):
            seconds[name].append(clock[number + 1] - clock[number])
    figures = {name: statistics.median(values[WARM_UP:]) for name, values in seconds.items()}
    return {"tensors": tensors, "wrap": wrapped, **figures, "loss": loss.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--tensors", nargs="+", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        measure(SYSTEMS[options.system], 10)  # what is loaded at its first use
        print(json.dumps([measure(SYSTEMS[options.system], count) for count in options.tensors]))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
