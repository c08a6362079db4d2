"""Training by Lightning's Fabric, in ranks that run already. Imported only there: Lightning takes seconds."""

import torch
from lightning.fabric import Fabric
from torch import nn

from fairshard.optim import OSS
from support.lightning import data, net


def train(strategy, folder=None, steps=6, load=None, clip=None, compiler=None, **options):
    """Accumulates two batches to a step, clips, follows a schedule; loads first, and saves at the end."""
    fabric = Fabric(strategy=strategy, accelerator="cpu", devices=2, **options)
    fabric.launch()
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    model, optimizer = fabric.setup(compiler(module) if compiler else module, optimizer)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0}
    if load:
        fabric.load(load, state)
    batches = list(fabric.setup_dataloaders(data()))
    for step in range(state["step"], steps):
        inputs, targets = batches[step % len(batches)]
        is_accumulating = step % 2 == 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(nn.functional.mse_loss(model(inputs), targets))
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, **(clip or {"clip_val": 0.01}))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    state["step"] = steps
    if folder:
        fabric.save(folder, state)
    if isinstance(optimizer, OSS):
        optimizer.wait_for_parameters()
    return module
