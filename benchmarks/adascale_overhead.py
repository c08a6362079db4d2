"""What AdaScale costs: the same sharded training with and without it, taking turns in one run.

python benchmarks/adascale_overhead.py [--model 10m] [--rounds 8] [--steps 5]
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gpt import Gpt

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale

LENGTH = 64


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
    times: dict[str, list[float]] = {name: [] for name in trained}
    for _ in range(options.rounds):
        for name, (model, optimizer) in trained.items():
            for _ in range(options.steps):
                start = time.perf_counter()
                model.zero_grad()
                model(text).backward()
                optimizer.step()
                times[name].append(time.perf_counter() - start)
    if rank == 0:
        plain, adascale = (statistics.median(values[options.steps :]) for values in times.values())
        print(f"plain {1e3 * plain:.1f} ms, AdaScale {1e3 * adascale:.1f} ms: {100 * (adascale / plain - 1):+.1f} %")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="10m", help="tiny, 10m or 60m")
    parser.add_argument("--batch", type=int, default=4, help="sequences of 64 bytes per rank")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, args=(folder, options), nprocs=2)


if __name__ == "__main__":
    main()
