"""Tutorial 1, optimizer state sharding, with the names that it leaves open filled in.

    python examples/tutorials/oss_sharded_ddp.py --world-size 2
    ...
    rank 0: loss 2.3 -> 0.0x, owns 50 % of the optimizer state

Digits of 8 x 8 pixels are made here (noisy copies of ten random patterns), so nothing is downloaded.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from fairshard.nn.data_parallel import ShardedDataParallel as ShardedDDP
from fairshard.optim.oss import OSS


def dist_init(rank: int, world_size: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)


def make_dataloader(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + rank)
    batches = []
    for _ in range(20):
        target = torch.randint(10, (32,), generator=generator)
        batches.append((patterns[target] + 0.5 * torch.randn(32, 64, generator=generator), target))
    return batches


def train(rank: int, world_size: int, epochs: int, folder: str, wrap_first: bool) -> None:
    torch.set_num_threads(1)
    dist_init(rank, world_size, folder)

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    dataloader = make_dataloader(rank)
    loss_fn = nn.CrossEntropyLoss()

    base_optimizer_arguments = {"lr": 0.05, "momentum": 0.9}
    base_optimizer = torch.optim.SGD
    if wrap_first:  # the tutorial on OSS
        model = ShardedDDP(model, device_ids=[rank])
        optimizer = OSS(params=model.parameters(), optim=base_optimizer, **base_optimizer_arguments)
    else:  # the tutorial on the grad scaler
        optimizer = OSS(params=model.parameters(), optim=base_optimizer, **base_optimizer_arguments)
        model = ShardedDDP(model, optimizer)

    losses = []
    model.train()
    for _ in range(epochs):
        for data, target in dataloader:
            model.zero_grad()
            outputs = model(data)
            loss = loss_fn(outputs, target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    owned = sum(p.numel() for group in optimizer.optim.param_groups for p in group["params"])
    share = owned / sum(p.numel() for p in model.parameters())
    print(f"rank {rank}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, owns {share:.0%} of the optimizer state", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--wrap-first", action="store_true", help="ShardedDDP before OSS, as tutorial 1 writes it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            train,
            args=(options.world_size, options.epochs, folder, options.wrap_first),
            nprocs=options.world_size,
            join=True,
        )
