"""Tutorial 2, AdaScale, with the names that it leaves open filled in.

python examples/tutorials/adascale.py --world-size 2
rank 0: loss 2.35 -> 0.0x, gain 1.x, 60 steps are worth 7x
...
"""

import torch
import torch.distributed as dist
from _digits import dist_init, make_dataloader, make_model, spawn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from fairshard.optim.adascale import AdaScale


def train(rank: int, world_size: int, epochs: int, folder: str, backend: str) -> None:
    device = dist_init(rank, world_size, folder, backend)

    model = make_model().to(device)
    model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
    dataloader = make_dataloader(rank)
    loss_fn = nn.CrossEntropyLoss()

    # optimizer specific arguments e.g. LR, momentum, etc...
    base_optimizer_arguments = {"lr": 0.1}
    optimizer = torch.optim.SGD(params=model.parameters(), **base_optimizer_arguments)

    # Wrap optimizer with AdaScale
    optimizer = AdaScale(optimizer)

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

    progress = f"{len(losses)} steps are worth {optimizer.effective_steps():.1f}"
    print(f"rank {rank}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, gain {optimizer.gain():.4f}, {progress}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(train, __doc__)
