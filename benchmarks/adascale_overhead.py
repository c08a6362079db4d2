"""What AdaScale costs: the same sharded training with and without it, taking turns step by step in one run.

    python benchmarks/adascale_overhead.py [--model 10m] [--batch 4] [--pairs 80]

A machine's speed wanders over seconds, so that steps are compared with those beside them.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale
from gpt import Gpt

LENGTH = 64
WARM_UP = 4


def rank_main(rank: int, folder: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(rank)
    text = torch.randint(256, (options.batch, LENGTH + 1))
    trained = {}
    for name in ("plain", "adascale"):
        torch.manual_seed(0)
        model = Gpt(options.model, LENGTH)
        optimizer = OSS(model.parameters(), torch.optim.SGD, lr=1e-3, momentum=0.9, fused=True)
        if name == "adascale":
            optimizer = AdaScale(optimizer)
        trained[name] = ShardedDataParallel(model, optimizer), optimizer
    ratios, times = [], {"plain": [], "adascale": []}
    for pair in range(WARM_UP + options.pairs):
        seconds = {}
        for name in sorted(trained, reverse=pair % 2 == 0):
            model, optimizer = trained[name]
            start = time.perf_counter()
            model.zero_grad()
            model(text).backward()
            optimizer.step()
            seconds[name] = time.perf_counter() - start
        if pair >= WARM_UP:
            ratios.append(seconds["adascale"] / seconds["plain"])
            for name, value in seconds.items():
                times[name].append(value)
    if rank == 0:
        plain, adascale = (1e3 * statistics.median(times[name]) for name in ("plain", "adascale"))
        low, middle, high = (100 * (ratio - 1) for ratio in statistics.quantiles(ratios, n=4))
        print(f"plain {plain:.1f} ms, AdaScale {adascale:.1f} ms a step")
        print(f"of steps side by side: {middle:+.1f} % (half of them {low:+.1f} to {high:+.1f})")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="10m", help="tiny, 10m or 60m")
    parser.add_argument("--batch", type=int, default=4, help="sequences of 64 bytes per rank")
    parser.add_argument("--pairs", type=int, default=80)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(folder, options), nprocs=2)


if __name__ == "__main__":
    main()
