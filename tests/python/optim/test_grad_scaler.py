"""ShardedGradScaler against torch's GradScaler in one process on the union of the batches."""

import copy

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, ShardedGradScaler
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

STEPS = 200


def _is_spoilt(step, rank, world_size):
    """Which rank's loss is infinite in which step: seeded, about one step in ten, on one or several ranks."""
    generator = torch.Generator().manual_seed(7 * step)
    return bool(torch.rand(world_size, generator=generator)[rank] < 0.1 / world_size)


def _loss(output, step, rank, world_size):
    return loss_of(output) * (float("inf") if _is_spoilt(step, rank, world_size) else 1.0)


def _reference(world_size, steps):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device().type, init_scale=1024.0, growth_interval=7)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        parts = [_loss(model(inputs(rank, step)), step, rank, world_size) for rank in range(world_size)]
        loss = sum(parts) / world_size
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append([part.item() for part in parts])
    return model, scaler, losses


def _infinities(rank, world_size):
    reference, reference_scaler, reference_losses = _reference(world_size, STEPS)
    assert reference_scaler.get_scale() != 1024.0
    for kind in ("sharded", "oss under ddp", "plain under ddp"):
        model = mlp()
        if kind == "sharded":
            optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9, bucket_bytes=2000)
            parallel = ShardedDataParallel(model, optimizer)
        else:
            parallel = DistributedDataParallel(model)
            options = {"lr": 0.05, "momentum": 0.9}
            is_oss = kind == "oss under ddp"
            optimizer = (
                OSS(model.parameters(), torch.optim.SGD, **options)
                if is_oss
                else torch.optim.SGD(model.parameters(), **options)
            )
        scaler = ShardedGradScaler(init_scale=1024.0, growth_interval=7)
        for step in range(STEPS if kind == "sharded" else 50):
            optimizer.zero_grad()
            loss = _loss(parallel(inputs(rank, step)), step, rank, world_size)
            if not _is_spoilt(step, rank, world_size):
                assert loss.item() == pytest.approx(reference_losses[step][rank], rel=1e-4), (kind, step)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if kind == "sharded":
            assert scaler.get_scale() == reference_scaler.get_scale()
            for ours, theirs in zip(values(model), values(reference), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    return scaler.get_scale(), [value.tolist() for value in values(model)]


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.costly)])
def test_infinities_on_any_rank_skip_the_step_on_all(run_ranks, world_size):
    results = run_ranks(world_size, _infinities)
    assert all(result == results[0] for result in results)


def _two_optimizers(rank, world_size):
    # One of two optimizers gets an infinity on one rank: it alone skips, on both; clipping follows unscaling.
    model, twin = mlp(), mlp()
    parts = [[*m[0].parameters(), *m[2].parameters()] for m in (model, twin)]
    heads = [list(m[4].parameters()) for m in (model, twin)]
    optimizers = [OSS(p, torch.optim.SGD, lr=0.1) for p in (parts[0], heads[0])]
    parallel = ShardedDataParallel(model, optimizers)
    plain = [torch.optim.SGD(p, lr=0.1) for p in (parts[1], heads[1])]
    scaler = ShardedGradScaler(init_scale=8.0)
    for step in range(4):
        for optimizer in (*optimizers, *plain):
            optimizer.zero_grad()
        hook = model[4].bias.register_hook(lambda g: g * float("nan") if rank == 1 and step == 2 else g)  # noqa: B023
        scaler.scale(loss_of(parallel(inputs(rank, step)))).backward()
        hook.remove()
        loss = sum(loss_of(twin(inputs(r, step))) for r in range(world_size)) / world_size
        loss.backward()
        scaler.unscale_(optimizers[0])
        optimizers[0].clip_grad_norm(0.01)
        torch.nn.utils.clip_grad_norm_(parts[1], 0.01)
        for optimizer in optimizers:
            scaler.step(optimizer)
        plain[0].step()
        if step != 2:
            plain[1].step()
        scaler.update()
        assert scaler.get_scale() == (8.0 if step < 2 else 4.0)
    for ours, theirs in zip(values(model), values(twin), strict=True):
        torch.testing.assert_close(ours, theirs)

    # a rank whose share is empty takes part, and the state goes through a dict
    tiny = torch.nn.Linear(1, 1, bias=False).to(device())
    optimizer = OSS(tiny.parameters(), torch.optim.SGD, lr=0.1)
    wrapped = ShardedDataParallel(tiny, optimizer)
    scaler.scale(wrapped(torch.ones(1, 1, device=device())).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    state = copy.deepcopy(scaler.state_dict())
    again = ShardedGradScaler()
    again.load_state_dict(state)
    assert again.state_dict() == state
    return True


def test_several_optimizers_clipping_and_empty_shares(run_ranks):
    assert all(run_ranks(2, _two_optimizers))


def _misuse(rank, world_size):
    model = mlp()
    optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.1)
    parallel = ShardedDataParallel(model, optimizer)
    with pytest.raises(AssertionError, match="growth factor"):
        ShardedGradScaler(growth_factor=1.0)
    for options in ({"init_scale": 0.0}, {"init_scale": -1.0}, {"growth_interval": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ShardedGradScaler(**options)
    scaler = ShardedGradScaler()
    with pytest.raises(AssertionError, match="scale"):
        scaler.update()  # before anything was scaled
    scaler.scale(loss_of(parallel(inputs(rank, 0)))).backward()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="empty"):
        scaler.load_state_dict({})
    # switched off, it is not there
    off = ShardedGradScaler(enabled=False)
    loss = loss_of(parallel(inputs(rank, 0)))
    assert off.scale(loss) is loss
    return True


def test_misuse_is_what_it_is_in_torch(run_ranks):
    assert all(run_ranks(1, _misuse))
