"""Tutorial 4, SlowMo distributed data parallelism, with the names that it leaves open filled in.

    python examples/tutorials/slowmo_ddp.py --world-size 4
    rank 0: loss 2.35 -> 0.0x, synchronised nodes 20 times in 60 steps
    ...

Ranks are taken as nodes of two. The slow momentum is left at its default, so one warning says what suits so few nodes.
"""

import torch
import torch.distributed as dist
from _digits import dist_init, make_dataloader, make_model, spawn
from torch import nn

from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel as SlowMoDDP


def train(rank: int, world_size: int, epochs: int, folder: str, backend: str) -> None:
    device = dist_init(rank, world_size, folder, backend)

    model = make_model().to(device)
    model = SlowMoDDP(model, nprocs_per_node=2)
    dataloader = make_dataloader(rank)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    losses = []
    model.train()
    for _ in range(epochs):
        for data, target in dataloader:
            data, target = data.to(device), target.to(device)
            model.zero_grad()
            outputs = model(data)
            loss = loss_fn(outputs, target)
            loss.backward()
            optimizer.step()
            model.perform_slowmo(optimizer)  # SlowMoDDP specific
            losses.append(loss.item())

    report = model.report()
    print(
        f"rank {rank}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, "
        f"synchronised nodes {report['averages']} times in {report['calls']} steps",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(train, __doc__)
