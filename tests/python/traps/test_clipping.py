"""Clipping as torch does it, with torch's own functions: Lightning, Trainer and Accelerate call just these."""

import math

import pytest
import torch
from torch import nn

from fairshard.optim import ShardedGradScaler
from support.models import inputs, loss_of, mlp
from support.parallel import CLIPPABLE, assert_same, ddp, sharded, train

CLIP = nn.utils.clip_grad_norm_
CALLS = {
    "parameters": lambda model: CLIP(model.parameters(), 0.05),
    "list": lambda model: CLIP(list(model.parameters()), 0.05),
    "some": lambda model: CLIP([p for p in model.parameters() if p.ndim > 1], 0.05),
    "one": lambda model: CLIP(next(iter(model.parameters())), 0.001),
    "largest": lambda model: CLIP(model.parameters(), 0.01, norm_type=math.inf),
    "first power": lambda model: CLIP(model.parameters(), 0.5, norm_type=1.0),
    "one by one": lambda model: CLIP(model.parameters(), 0.05, foreach=False),
    "no clipping": lambda model: CLIP(model.parameters(), math.inf),
    "twice": lambda model: (CLIP(model.parameters(), 0.05), CLIP(model.parameters(), 0.02))[1],
    "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.002),
    "value of a list": lambda model: nn.utils.clip_grad_value_(list(model.parameters())[2:], 0.002),
}


def _as_ddp(rank, world_size, mode, call):
    clip = CALLS[call]
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.5, momentum=0.9)
    theirs = train(parallel, optimizer, rank, clip=lambda: clip(parallel))
    wrapper, optimizer = sharded(ours, mode, lr=0.5, momentum=0.9)
    found = train(wrapper, optimizer, rank, clip=lambda: clip(wrapper))
    for a, b in zip(found, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, msg=lambda m: f"{mode}, {call}: norm: {m}")
    assert_same(wrapper, plain, f"{mode}, {call}", rounded=True)  # with overlap_gather, some values are under way
    # and it has clipped at all
    free = mlp()
    train(*ddp(free, lr=0.5, momentum=0.9), rank)
    assert call == "no clipping" or not free[0].weight.equal(plain[0].weight)


@pytest.mark.parametrize("call", CALLS)
def test_clips_as_under_ddp(run_ranks, call):
    run_ranks(2, _as_ddp, "gradients", call)


@pytest.mark.parametrize("call", ["parameters", "value"])
@pytest.mark.parametrize("mode", [mode for mode in CLIPPABLE if mode != "gradients"])
def test_clips_in_every_mode(run_ranks, mode, call):
    run_ranks(2, _as_ddp, mode, call)


def _refused(rank, world_size):
    wrapper, optimizer = sharded(mlp(), "step_in_backward", lr=0.5)
    with pytest.raises(RuntimeError, match="step_in_backward"):
        train(wrapper, optimizer, rank, clip=lambda: CLIP(wrapper.parameters(), 0.05))


def test_is_refused_where_backward_steps(run_ranks):
    run_ranks(2, _refused)


def _accumulated(rank, world_size):
    def run(model, parallel, optimizer):
        norms = []
        for step in range(2):
            optimizer.zero_grad()
            with parallel.no_sync():
                loss_of(parallel(inputs(rank, 2 * step))).backward()
            loss_of(parallel(inputs(rank, 2 * step + 1))).backward()
            norms.append(CLIP(model.parameters(), 0.05))
            optimizer.step()
        return torch.stack(norms)

    plain, ours = mlp(), mlp()
    theirs = run(plain, *ddp(plain, lr=0.5))
    torch.testing.assert_close(run(ours, *sharded(ours, "gradients", lr=0.5)), theirs, rtol=1e-6, atol=0)
    assert_same(ours, plain, rounded=True)


def test_clips_what_was_accumulated(run_ranks):
    run_ranks(2, _accumulated)


def _after_unscaling(rank, world_size):
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.5)
    theirs = train(parallel, optimizer, rank, clip=lambda: CLIP(plain.parameters(), 0.05))
    wrapper, optimizer = sharded(ours, "gradients", lr=0.5)
    scaler = ShardedGradScaler(init_scale=1024.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(wrapper(inputs(rank, step)))).backward()
        scaler.unscale_(optimizer)
        torch.testing.assert_close(CLIP(ours.parameters(), 0.05), theirs[step], rtol=1e-6, atol=0)
        scaler.step(optimizer)
        scaler.update()
    assert_same(ours, plain, rounded=True)


def test_clips_after_unscaling(run_ranks):
    run_ranks(2, _after_unscaling)


def _not_finite(rank, world_size):
    wrapper, _ = sharded(mlp(), "gradients", lr=0.5)
    loss_of(wrapper(inputs(rank, 0) * (math.inf if rank == 1 else 1))).backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        CLIP(wrapper.parameters(), 0.05, error_if_nonfinite=True)


def test_one_ranks_infinities_are_found_on_all(run_ranks):
    run_ranks(2, _not_finite)


def _methods(rank, world_size):
    """Ours by norm is there; by value it is missing. It must agree with torch's."""
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.5)
    train(parallel, optimizer, rank, clip=lambda: nn.utils.clip_grad_value_(plain.parameters(), 0.002))
    wrapper, optimizer = sharded(ours, "gradients", lr=0.5)
    train(wrapper, optimizer, rank, clip=lambda: optimizer.clip_grad_value(0.002))
    assert_same(ours, plain)


def test_oss_clips_by_value(run_ranks):
    run_ranks(2, _methods)
