"""Reentrant checkpointing of a whole model with a grad scaler; the step is its own, or plain as in the tutorial."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fairshard.optim import ShardedGradScaler
from support.models import inputs, loss_of, mlp
from support.parallel import assert_same, ddp, sharded, train

pytestmark = pytest.mark.costly


class Checkpointed(nn.Module):
    """A model that computes all of itself again in backward."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, x):
        return checkpoint(self.layers, x.requires_grad_(), use_reentrant=True)


def outside(wrapper, x):
    return checkpoint(wrapper, x.requires_grad_(), use_reentrant=True)


def inside(wrapper, x):
    return wrapper(x)


def _scaled(rank, world_size, is_inside, is_plain_step, mode):
    plain = Checkpointed() if is_inside else mlp()
    # without scaling, and without checkpointing, which change nothing
    reference = plain.layers if is_inside else plain
    train(*ddp(reference, lr=0.1), rank)

    wrapper, optimizer = sharded(Checkpointed() if is_inside else mlp(), mode, lr=0.1)
    scaler = ShardedGradScaler(init_scale=2.0**12)
    forward = inside if is_inside else outside
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(forward(wrapper, inputs(rank, step)))).backward()
        if is_plain_step:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    assert_same(wrapper, plain, f"{is_inside=}, {is_plain_step=}", rounded=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["gradients", "overlap_gather", "optimizer"])
@pytest.mark.parametrize("is_plain_step", [True, False], ids=["plain step", "scaler's step"])
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "outside"])
def test_gradients_are_stepped_without_the_scale(run_ranks, is_inside, is_plain_step, mode):
    run_ranks(2, _scaled, is_inside, is_plain_step, mode)


def _accumulated(rank, world_size):
    """Two scaled backwards, the first of them within no_sync, and a plain step."""
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.1)
    wrapper, sharded_optimizer = sharded(ours, "gradients", lr=0.1)
    scaler = ShardedGradScaler(init_scale=2.0**12)
    for model, each, scale in ((parallel, optimizer, lambda x: x), (wrapper, sharded_optimizer, scaler.scale)):
        for step in range(2):
            each.zero_grad()
            with model.no_sync():
                scale(loss_of(outside(model, inputs(rank, 2 * step)))).backward()
            scale(loss_of(outside(model, inputs(rank, 2 * step + 1)))).backward()
            each.step()
    assert_same(ours, plain, rounded=True)


@pytest.mark.filterwarnings("ignore")
def test_what_was_accumulated_is_stepped_without_the_scale(run_ranks):
    run_ranks(2, _accumulated)


def _overflow(rank, world_size):
    """An infinity on one rank: no rank steps, whoever calls the step."""
    wrapper, optimizer = sharded(mlp(), "gradients", lr=0.1)
    before = [parameter.detach().clone() for parameter in wrapper.module.parameters()]
    scaler = ShardedGradScaler(init_scale=2.0**12)
    x = inputs(rank, 0) * (float("inf") if rank == 1 else 1)
    scaler.scale(loss_of(outside(wrapper, x))).backward()
    optimizer.step()
    for parameter, value in zip(wrapper.module.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_an_overflow_skips_the_step(run_ranks):
    run_ranks(2, _overflow)
