"""Gradients that add up, are set by hand or dropped, in buckets of all sizes, against DDP and plain torch."""

import contextlib

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

ADAMW = (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1})
SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
MODES = ("gradients", "optimizer", "replicated")


def made(mode, optim, options, bucket_bytes=600):
    model = mlp()
    if mode == "replicated":
        parallel = ShardedDataParallel(model, reduce_buffer_size=bucket_bytes // 4)
        return model, optim(model.parameters(), **options), parallel
    optimizer = OSS(model.parameters(), optim, bucket_bytes=bucket_bytes, **options)
    return model, optimizer, ShardedDataParallel(model, optimizer, mode=mode)


def backward(parallel, rank, step):
    loss_of(parallel(inputs(rank, step))).backward()


def plain_backward(plain, step, world_size):
    (sum(loss_of(plain(inputs(rank, step))) for rank in range(world_size)) / world_size).backward()


def check(model, plain, what, **tolerances):
    for ours, theirs in zip(values(model), values(plain), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda m: f"{what}: {m}", **tolerances)


def accumulate(parallel, optimizer, rank, context):
    for step in range(4):
        for micro in range(3):
            with context() if micro < 2 else contextlib.nullcontext():
                backward(parallel, rank, 10 * step + micro)
        optimizer.step()
        optimizer.zero_grad()


def _adding_up(rank, world_size):
    for optim, options in (ADAMW, SGD):
        plain = mlp()
        ddp = DistributedDataParallel(plain)
        accumulate(ddp, optim(plain.parameters(), **options), rank, ddp.no_sync)
        for mode in MODES:
            model, optimizer, parallel = made(mode, optim, options)
            accumulate(parallel, optimizer, rank, parallel.no_sync)
            check(model, plain, f"no_sync, {mode}", rtol=0, atol=0)
            model, optimizer, parallel = made(mode, optim, options)
            accumulate(parallel, optimizer, rank, contextlib.nullcontext)
            check(model, plain, f"each reduced, {mode}", rtol=1e-5, atol=1e-6)

    # buckets of one parameter each, and one that is larger than the model
    plain = mlp()
    ddp = DistributedDataParallel(plain)
    accumulate(ddp, ADAMW[0](plain.parameters(), **ADAMW[1]), rank, ddp.no_sync)
    for mode in MODES:
        for bucket_bytes in (0, 1 << 30):
            model, optimizer, parallel = made(mode, *ADAMW, bucket_bytes=bucket_bytes)
            accumulate(parallel, optimizer, rank, parallel.no_sync)
            check(model, plain, f"{bucket_bytes=}, {mode}", rtol=0, atol=0)


def _by_hand(rank, world_size):
    for mode in MODES:
        model, optimizer, parallel = made(mode, *SGD)
        plain = mlp()
        plain_optimizer = SGD[0](plain.parameters(), **SGD[1])
        generator = torch.Generator().manual_seed(13)
        for step, (is_backward, count) in enumerate(
            [(True, 0), (False, 6), (True, 3), (False, 2), (True, 6), (True, 0)]
        ):
            if is_backward:
                backward(parallel, rank, step)
                plain_backward(plain, step, world_size)
            for ours, theirs in list(zip(model.parameters(), plain.parameters(), strict=True))[:count]:
                ours.grad = torch.randn(ours.shape, generator=generator).to(device())
                theirs.grad = ours.grad.clone()
            for each in (optimizer, plain_optimizer):
                each.step()
                each.zero_grad()
            check(model, plain, f"set by hand, {mode}, {step=}", rtol=1e-5, atol=1e-6)

        # zero_grad in all its forms, before the backward or after the step
        for kind in range(6):
            for is_before in (True, False):
                model, optimizer, parallel = made(mode, *SGD)
                plain = mlp()
                plain_optimizer = SGD[0](plain.parameters(), **SGD[1])
                target = (optimizer, parallel, model)[kind // 2]
                for step in range(4):
                    if is_before:
                        target.zero_grad(set_to_none=kind % 2 == 0)
                    backward(parallel, rank, step)
                    if step == 2 and target is not model:  # what was reduced is dropped, too
                        target.zero_grad(set_to_none=kind % 2 == 0)
                        backward(parallel, rank, 50)
                    optimizer.step()
                    if not is_before:
                        target.zero_grad(set_to_none=kind % 2 == 0)
                    plain_optimizer.zero_grad()
                    plain_backward(plain, 50 if step == 2 and target is not model else step, world_size)
                    plain_optimizer.step()
                check(model, plain, f"zero_grad, {mode}, {kind=}, {is_before=}", rtol=1e-5, atol=1e-6)

        # a real gradient that requires a gradient
        with parallel.no_sync():
            loss_of(parallel(inputs(rank, 0))).backward(create_graph=True)
        with pytest.raises(RuntimeError, match=r"'0\.weight' itself requires a gradient"):
            parallel(inputs(rank, 0))
        model.zero_grad()
        parallel(inputs(rank, 0))


def _all(rank, world_size):
    _adding_up(rank, world_size)
    _by_hand(rank, world_size)
    return True


@pytest.mark.costly
def test_gradients_that_add_up_or_are_set_by_hand(run_ranks):
    assert all(run_ranks(2, _all))
