"""What ShardedDataParallel's hooks cost in backward, for a model of a thousand small parameters and one rank.

    python benchmarks/hook_overhead.py

"hooks" is a backward under no_sync(): every hook runs and leaves the gradient alone. "reduction" also copies
gradients to their buckets and reduces them (over one rank, so nothing is sent). Backwards of the three kinds take
turns; the figures are medians, against the plain backward.
"""

import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(500)])


def backward_seconds(model: nn.Module, inner: nn.Module) -> float:
    loss = model(torch.ones(8, 16)).sum()
    start = time.perf_counter()
    loss.backward()
    seconds = time.perf_counter() - start
    inner.zero_grad()
    return seconds


def main() -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        plain, sharded = make_model(), make_model()
        optimizer = OSS(sharded.parameters(), torch.optim.SGD, lr=0.0)
        parallel = ShardedDataParallel(sharded, optimizer)
        times: dict[str, list[float]] = {"plain": [], "hooks": [], "reduction": []}
        for _ in range(200):
            times["plain"].append(backward_seconds(plain, plain))
            with parallel.no_sync():
                times["hooks"].append(backward_seconds(parallel, sharded))
            times["reduction"].append(backward_seconds(parallel, sharded))
            optimizer.zero_grad()
        dist.destroy_process_group()
    base = statistics.median(times["plain"])
    print(f"{len(list(plain.parameters()))} parameters")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:10s} {1e3 * median:7.3f} ms  {100 * (median / base - 1):+5.1f} %")


if __name__ == "__main__":
    main()
