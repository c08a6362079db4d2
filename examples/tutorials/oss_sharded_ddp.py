"""Tutorial 1, optimizer state sharding, with the names that it leaves open filled in.

python examples/tutorials/oss_sharded_ddp.py --world-size 2
rank 0: loss 2.35 -> 0.0x, owns 50% of the optimizer state
...
"""

import torch
import torch.distributed as dist
from _digits import dist_init, make_dataloader, make_model, report, spawn
from torch import nn

from fairshard.nn.data_parallel import ShardedDataParallel as ShardedDDP
from fairshard.optim.oss import OSS


def train(rank: int, world_size: int, epochs: int, folder: str, backend: str) -> None:
    device = dist_init(rank, world_size, folder, backend)

    model = make_model().to(device)
    model = ShardedDDP(model, device_ids=[rank])
    dataloader = make_dataloader(rank)
    loss_fn = nn.CrossEntropyLoss()

    base_optimizer_arguments = {"lr": 0.05, "momentum": 0.9}
    base_optimizer = torch.optim.SGD  # any torch optimizer
    optimizer = OSS(params=model.parameters(), optim=base_optimizer, **base_optimizer_arguments)

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
            losses.append(loss.item())

    report(rank, losses, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(train, __doc__)
