"""Ranks that do different numbers of rounds, against one process in which absent ranks have gradients of zero."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of
from support.ranks import device

OPTIONS = {"lr": 0.05, "weight_decay": 0.1}
MAX_NORM = 0.3


def normed():
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(10, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    return model.to(device())


def schedule_of(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)


def simulate(rounds, clip, microbatches=1):
    """One process. All start a round from the buffers of the lowest rank that still has inputs."""
    model = normed()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    schedule = schedule_of(optimizer)
    norms, buffers = [], [dict(normed().named_buffers()) for _ in rounds]
    for step in range(max(rounds)):
        active = [rank for rank, count in enumerate(rounds) if count > step]
        start = buffers[active[0]]
        for rank in active:
            model.load_state_dict(start, strict=False)
            for part in range(microbatches):
                (loss_of(model(inputs(rank, 10 * step + part))) / len(rounds)).backward()
            buffers[rank] = copy.deepcopy(dict(model.named_buffers()))
        if clip:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.load_state_dict(buffers[active[0]], strict=False)
    return model, norms


def check(model, expected, world_size):
    for (name, ours), theirs in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda m, name=name: f"{name}: {m}")
    check_same_everywhere(model.state_dict().values(), world_size)


def check_same_everywhere(tensors, world_size):
    ours = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    everybody = [torch.empty_like(ours) for _ in range(world_size)]
    dist.all_gather(everybody, ours)
    assert all(other.equal(ours) for other in everybody)


def _sharded(rank, world_size, rounds):
    for clip in (False, True):
        expected, norms = simulate(rounds, clip)
        for overlap in (False, True):
            model = normed()
            optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=300, overlap_gather=overlap, **OPTIONS)
            parallel = ShardedDataParallel(model, optimizer)
            schedule = schedule_of(optimizer)
            with parallel.join():
                for step in range(rounds[rank]):
                    loss_of(parallel(inputs(rank, 10 * step))).backward()
                    if clip:
                        torch.testing.assert_close(optimizer.clip_grad_norm(MAX_NORM), norms[step])
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
            optimizer.wait_for_parameters()
            check(model, expected, world_size)

    # gradients that add up, reduced each time or only once
    expected, _ = simulate(rounds, False, microbatches=2)
    for accumulate in (contextlib.nullcontext, "no_sync"):
        model = normed()
        optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=300, **OPTIONS)
        parallel = ShardedDataParallel(model, optimizer)
        schedule = schedule_of(optimizer)
        with parallel.join():
            for step in range(rounds[rank]):
                with parallel.no_sync() if accumulate == "no_sync" else accumulate():
                    loss_of(parallel(inputs(rank, 10 * step))).backward()
                loss_of(parallel(inputs(rank, 10 * step + 1))).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)

    # afterwards all train together again, on the same values
    loss_of(parallel(inputs(rank, 99))).backward()
    optimizer.step()
    check_same_everywhere(model.parameters(), world_size)
    return True


def _whole_gradients(rank, world_size, rounds, mode, microbatches):
    expected, _ = simulate(rounds, False, microbatches)
    model = normed()
    if mode == "optimizer":
        optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=300, **OPTIONS)
        parallel = ShardedDataParallel(model, optimizer, mode=mode)
    else:  # the optimizer of a rank that has joined does not step, but its model follows
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
        parallel = ShardedDataParallel(model)
    schedule = schedule_of(optimizer)
    with parallel.join():
        for step in range(rounds[rank]):
            for part in range(microbatches):  # each is reduced, and added to what was reduced before
                loss_of(parallel(inputs(rank, 10 * step + part))).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    check_same_everywhere(model.state_dict().values(), world_size)
    return True


@pytest.mark.parametrize("rounds", [(5, 3), (0, 2, 4)])
def test_sharded_gradients(run_ranks, rounds):
    assert all(run_ranks(len(rounds), _sharded, rounds))


@pytest.mark.parametrize(("mode", "microbatches"), [("optimizer", 1), ("optimizer", 2), ("replicated", 1)])
def test_whole_gradients(run_ranks, mode, microbatches):
    assert all(run_ranks(2, _whole_gradients, (5, 3), mode, microbatches))
