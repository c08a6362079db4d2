"""AdaScale on ranks: the reference gains, and the formula step by step in every mode."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Adam

from fairshard.optim import ShardedGradScaler
from support.adascale import KINDS, SHARDED_KINDS, Simulation, build, first_layers, unit_loss
from support.models import inputs, loss_of, mlp
from support.ranks import device


def _reference_gains(rank, world_size):
    for batches, expected in ((((1, 0), (0, 1)), 4 / 3), (((1, 1), (1, 1)), 1.0), (((-1, 1), (1, -1)), 2.0)):
        for kind in KINDS:
            model = nn.Linear(2, 2).to(device())
            ada, optimizer, parallel = build(kind, model)
            parallel(torch.tensor([batches[rank]], dtype=torch.float32, device=device())).sum().backward()
            assert ada.gain() == pytest.approx(expected, abs=1e-6), (kind, batches)
            optimizer.step()
            assert ada.gain() == pytest.approx(expected, abs=1e-6), (kind, batches)
    return True


def test_reference_gains_in_every_mode(run_ranks):
    assert all(run_ranks(2, _reference_gains))


def _step_by_step(rank, world_size):
    simulation = Simulation()
    runs = {kind: (model := mlp(), *build(kind, model)) for kind in KINDS}
    for step in range(10):
        simulation.step(step, range(world_size))
        for kind, (model, ada, optimizer, parallel) in runs.items():
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            unit_loss(parallel, rank, step).backward()
            assert ada.gain() == pytest.approx(simulation.gain(), rel=1e-5), (kind, step)  # before the step
            optimizer.step()
            simulation.check(ada, model, (kind, step))
    assert all(ada.scale == world_size for _, ada, _, _ in runs.values())
    return True


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.costly)])
def test_gains_and_parameters_follow_the_formula_in_every_mode(run_ranks, world_size):
    assert all(run_ranks(world_size, _step_by_step))


def _accumulated(rank, world_size):
    # Two ranks with two, then three gradients each are as four and six ranks.
    for kind in ("ddp", "sharded", "gradients", "optimizer", "inside"):
        for is_scaled, is_synced in ((True, False), (True, True), (False, False), (False, True)):
            if kind == "inside" and not is_scaled:
                continue  # only the OSS around it could scale the gradients
            model, simulation = mlp(), Simulation()
            options = {"num_gradients_to_accumulate": 2, "is_scaled_loss": is_scaled}
            ada, optimizer, parallel = build(kind, model, **options)
            for step in range(5):
                count = 2 if step < 3 else 3
                ada.set_num_gradients_to_accumulate(count)
                optimizer.zero_grad()
                for micro in range(count):
                    is_quiet = micro < count - 1 and not is_synced
                    with parallel.no_sync() if is_quiet else contextlib.nullcontext():
                        loss = unit_loss(parallel, count * rank + micro, step)
                        (loss / count if is_scaled else loss).backward()
                simulation.step(step, range(count * world_size))
                assert ada.gain() == pytest.approx(simulation.gain(), rel=1e-5), (kind, is_scaled, is_synced, step)
                if not is_scaled:
                    ada.scale_grad_by_num_grads_to_accum()
                optimizer.step()
                simulation.check(ada, model, (kind, is_scaled, is_synced, step))
    return True


def _unreduced(rank, world_size):
    for kind in ("gradients", "optimizer"):
        _, _, parallel = build(kind, mlp())
        with parallel.no_sync(), pytest.raises(RuntimeError, match="must not be within no_sync"):
            unit_loss(parallel, rank, 0).backward()
    return True


@pytest.mark.costly
def test_ranks_times_accumulation_are_as_more_ranks(run_ranks):
    assert all(run_ranks(2, _accumulated))


def test_gradients_that_are_not_reduced_are_not_measured(run_ranks):
    assert all(run_ranks(2, _unreduced))


def _local_gains(rank, world_size):
    for kind in ("ddp", "gradients", "optimizer", "inside"):
        model, simulation = mlp(), Simulation()
        ada, optimizer, parallel = build(kind, model)
        for step in range(4):
            optimizer.zero_grad()
            unit_loss(parallel, rank, step).backward()
            simulation.step(step, range(world_size), max_norm=0.01)
            if rank == step % 2:  # on one rank only, with the other in a barrier that would notice
                assert ada.gain() == pytest.approx(simulation.gain(), rel=1e-5), (kind, step)
            dist.barrier()
            if kind == "ddp":
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            else:
                optimizer.clip_grad_norm(0.01)
            optimizer.step()
            simulation.check(ada, model, (kind, step))
    for kind in SHARDED_KINDS:  # the rule of what is inside
        for rule in ("adam", "sgd"):
            model, simulation = mlp(), Simulation(optim=Adam, rule=rule, lr=1e-3)
            ada, optimizer, parallel = build(
                kind, model, optim=Adam, lr=1e-3, **({} if rule == "adam" else {"rule": rule})
            )
            for step in range(3):
                optimizer.zero_grad()
                unit_loss(parallel, rank, step).backward()
                optimizer.step()
                simulation.step(step, range(world_size))
                simulation.check(ada, model, (kind, rule, step))
    return True


def test_the_gain_is_known_to_each_rank_after_backward_and_clipping_leaves_it(run_ranks):
    assert all(run_ranks(2, _local_gains))


def _with_scaler(rank, world_size):
    for kind in ("ddp", "sharded", "optimizer", "oss under ddp", *SHARDED_KINDS):
        model, simulation = mlp(), Simulation()
        ada, optimizer, parallel = build(kind, model)
        scaler = ShardedGradScaler(init_scale=1024.0, growth_interval=3)
        for step in range(10):
            is_spoilt = step in (0, 4, 5)
            optimizer.zero_grad()
            loss = unit_loss(parallel, rank, step)
            scaler.scale(loss * float("inf") if is_spoilt and rank == step % 2 else loss).backward()
            if step % 3 == 0:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            if not is_spoilt:
                simulation.step(step, range(world_size))
            if step > 0:
                simulation.check(ada, model, (kind, step))
        assert scaler.get_scale() != 1024.0
    return True


def test_steps_that_the_scaler_skips_leave_no_trace(run_ranks):
    assert all(run_ranks(2, _with_scaler))


class Branches(nn.Module):
    """One branch is used by some ranks in some steps, one parameter never."""

    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = nn.Linear(10, 8), nn.Linear(8, 5), nn.Linear(8, 5)
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, batch, is_right):
        hidden = self.body(batch).tanh()
        return self.left(hidden) + self.right(hidden) if is_right else self.left(hidden)


def _branch_loss(model, unit, step):
    batch = inputs(unit, step).to(next(model.parameters()).dtype)
    return loss_of(model(batch, step % 3 == 0 or (step % 3 == 1 and unit == 1)))


def _odd_parameters(rank, world_size):
    for kind in ("ddp", "sharded", "optimizer", *SHARDED_KINDS):
        torch.manual_seed(0)
        model = Branches().to(device())
        simulation = Simulation(model)
        ada, optimizer, parallel = build(kind, model, find_unused=True)
        for step in range(7):
            if kind != "ddp":  # which cannot follow it
                for part in (model, simulation.model):
                    part.body.weight.requires_grad_(not 1 <= step < 4)
            optimizer.zero_grad()
            _branch_loss(parallel, rank, step).backward()
            optimizer.step()
            simulation.step(step, range(world_size), _branch_loss)
            simulation.check(ada, model, (kind, step))
    for kind in ("ddp", "sharded", *SHARDED_KINDS):  # a head that is added later
        model, simulation = mlp(), Simulation(groups=first_layers)
        if kind in SHARDED_KINDS:
            model[4].requires_grad_(False)
        ada, optimizer, parallel = build(kind, model, first_layers)
        for step in range(6):
            if step == 3:
                model[4].requires_grad_(True)
                optimizer.add_param_group({"params": [*model[4].parameters()], "lr": 0.05})
                simulation.optimizer.add_param_group({"params": [*simulation.model[4].parameters()], "lr": 0.05})
            parallel.zero_grad()
            unit_loss(parallel, rank, step).backward()
            optimizer.step()
            simulation.step(step, range(world_size))
            simulation.check(ada, model, (kind, step))
        assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.1, 0.05]
    return True


@pytest.mark.costly
def test_missing_gradients_frozen_parameters_and_late_groups(run_ranks):
    assert all(run_ranks(2, _odd_parameters))


def _resumed(rank, world_size):
    for kind in ("ddp", "oss under ddp", *SHARDED_KINDS):
        model, simulation = mlp(), Simulation(momentum=0.9, smoothing=0.8)
        ada, optimizer, parallel = build(kind, model, momentum=0.9, smoothing=0.8)
        for step in range(6):
            if step == 3:
                if kind != "ddp":
                    optimizer.consolidate_state_dict(recipient_rank=-1)
                state, weights = copy.deepcopy(optimizer.state_dict()), model.state_dict()
                model = mlp(1)
                model.load_state_dict(weights)
                ada, optimizer, parallel = build(kind, model, lr=0.5, momentum=0.1, smoothing=0.8)
                optimizer.load_state_dict(state)
                simulation.check(ada, model, (kind, "loaded"))
            optimizer.zero_grad()
            unit_loss(parallel, rank, step).backward()
            optimizer.step()
            simulation.step(step, range(world_size))
            simulation.check(ada, model, (kind, step))
        with pytest.raises((ValueError, RuntimeError), match="group"):
            optimizer.load_state_dict({**state, "param_groups": state["param_groups"] * 2})
    return True


def test_loaded_runs_go_on_as_if_never_stopped(run_ranks):
    assert all(run_ranks(2, _resumed))
