"""OSS as a torch optimizer: options, clipping, schedulers, state dicts."""

import copy
import io
import math

import pytest
import torch

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values


def _sharded(optim, rank, **options):
    model = mlp()
    optimizer = OSS(model.parameters(), optim, bucket_bytes=2000, **options)
    return model, optimizer, ShardedDataParallel(model, optimizer)


def _plain_step(model, optimizer, step, world_size, max_norm=None, norm_type=2.0):
    optimizer.zero_grad()
    (sum(loss_of(model(inputs(rank, step))) for rank in range(world_size)) / world_size).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type) if max_norm else None
    optimizer.step()
    return norm


def expect_own_part(state):
    """A rank's own part of a state is not taken for the whole: neither by arithmetic nor by files."""
    own = next(value for fields in state["state"].values() for value in fields.values() if value.dim() > 0)
    with pytest.raises(TypeError, match=r"only a part of the optimizer's state.* consolidate_state_dict\(\)"):
        own.sum()
    with pytest.raises(RuntimeError, match=r"only this rank's part.* consolidate_state_dict\(\)"):
        torch.save(state, io.BytesIO())


def _state_dicts(rank, world_size):
    for optim, options in ((torch.optim.AdamW, {"lr": 1e-2}), (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9})):
        _, optimizer, parallel = _sharded(optim, rank, **options)
        plain = mlp()
        plain_optimizer = optim(plain.parameters(), **options)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(parallel(inputs(rank, step))).backward()
            optimizer.step()
            _plain_step(plain, plain_optimizer, step, world_size)

        expect_own_part(optimizer.state_dict())
        optimizer.consolidate_state_dict(recipient_rank=1)
        if rank == 1:
            ours, theirs = optimizer.state_dict(), plain_optimizer.state_dict()
            torch.testing.assert_close(ours["state"], theirs["state"], check_device=False)
            assert ours["param_groups"] == theirs["param_groups"]
            optim(mlp().parameters(), **options).load_state_dict(ours)  # the plain optimizer takes it
        else:
            expect_own_part(optimizer.state_dict())
        everywhere = optimizer.state_dict(all_ranks=True)  # on every rank, and consolidated now
        torch.testing.assert_close(everywhere["state"], plain_optimizer.state_dict()["state"], check_device=False)

        # a plain optimizer's state goes into a fresh OSS, which then goes on as the plain one does
        state = plain_optimizer.state_dict()
        before = copy.deepcopy(state)
        resumed, resumed_optimizer, resumed_parallel = _sharded(optim, rank, **options)
        resumed.load_state_dict(plain.state_dict())
        resumed_optimizer.load_state_dict(state)
        torch.testing.assert_close(state, before, rtol=0, atol=0)
        for step in range(3, 6):
            resumed_optimizer.zero_grad()
            loss_of(resumed_parallel(inputs(rank, step))).backward()
            resumed_optimizer.step()
            _plain_step(plain, plain_optimizer, step, world_size)
        for a, b in zip(values(resumed), values(plain), strict=True):
            torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters, the optimizer of \[6\]"):
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
    return True


@pytest.mark.parametrize("world_size", [2, 3])
def test_state_dicts_are_those_of_the_plain_optimizer(run_ranks, world_size):
    assert all(run_ranks(world_size, _state_dicts))


def _clipping(rank, world_size):
    for norm_type in (1.0, 2.0, math.inf):
        model, optimizer, parallel = _sharded(torch.optim.SGD, rank, lr=1.0)
        plain = mlp()
        loss_of(parallel(inputs(rank, 0))).backward()
        norm = optimizer.clip_grad_norm(0.01, norm_type)
        optimizer.step()
        expected = _plain_step(plain, torch.optim.SGD(plain.parameters(), lr=1.0), 0, world_size, 0.01, norm_type)
        torch.testing.assert_close(norm, expected)
        for a, b in zip(values(model), values(plain), strict=True):
            torch.testing.assert_close(a, b)
    return True


def test_clipping_is_that_of_the_whole_gradient(run_ranks):
    assert all(run_ranks(2, _clipping))


class _Counting(torch.optim.SGD):
    """An optimizer of a user's own: no closure, an argument and an option of its own."""

    def step(self, factor=1.0):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] * factor)


def _options(rank, world_size):
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
    optimizer = OSS(groups, _Counting, partition="even", lr=0.1)
    optimizer.add_param_group({"params": model[4].parameters(), "lr": 0.2})
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1, 0.2]
    parallel = ShardedDataParallel(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    losses = []
    for _ in range(2):

        def closure():
            optimizer.zero_grad()
            loss = loss_of(parallel(inputs(0, 0)))
            loss.backward()
            return loss

        losses.append(optimizer.step(closure, factor=0.5).item())
        schedule.step()
    assert losses[1] < losses[0]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.125, 0.025, 0.05])
    assert [group["steps"] for group in optimizer.param_groups] == [2, 2, 2]
    assert [group["lr"] for group in optimizer.optim.param_groups] == pytest.approx([0.25, 0.05, 0.1])
    owned = [sum(p.numel() for group in groups for p in group["params"]) for groups in optimizer.partition_parameters()]
    assert sum(owned) == sum(p.numel() for p in model.parameters())
    assert max(owned) - min(owned) < 0.05 * sum(owned)  # even, not by whole tensors
    return True


def test_options_closures_schedulers_and_late_groups(run_ranks):
    assert all(run_ranks(2, _options))


def _refused(rank, world_size):
    with pytest.raises(NotImplementedError, match="LBFGS"):
        OSS(mlp().parameters(), torch.optim.LBFGS)
    with pytest.raises(ValueError, match="empty parameter list"):
        OSS([], torch.optim.SGD, lr=0.1)
    return True


def test_what_cannot_be_sharded_is_refused(run_ranks):
    assert all(run_ranks(1, _refused))
