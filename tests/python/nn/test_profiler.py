"""A profiler sees the phases of a step by name, with their buckets, on whichever thread they run."""

import copy

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.experimental.nn.offload import OffloadModel
from support.models import inputs, loss_of, mlp
from support.parallel import sharded, train
from support.ranks import device


def ranges(run) -> set[str]:
    """The names of ours that torch's profiler has seen in the run."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return {event.name.removeprefix("fairshard::") for event in seen.events() if event.name.startswith("fairshard::")}


def _phases(rank, world_size):
    parallel, optimizer = sharded(mlp(), "gradients", lr=0.1)
    train(parallel, optimizer, rank)
    seen = ranges(lambda: train(parallel, optimizer, rank, (3,), clip=lambda: optimizer.clip_grad_norm(1.0)))
    bucket = "gradients of bucket 0: 4.bias to 2.bias"
    assert {f"reduce {bucket}", "gather parameters of bucket 0", "step", "clip", "reduce the rest"} <= seen, seen
    assert "wait for all_gather parameters of bucket 0" in seen, seen

    stepping, optimizer = sharded(mlp(), "step_in_backward", lr=0.1)
    train(stepping, optimizer, rank)
    assert {"step", "step bucket 0"} <= ranges(lambda: train(stepping, optimizer, rank, (3,)))

    paged = OffloadModel(copy.deepcopy(mlp()).cpu(), device(), num_slices=2)
    seen = ranges(lambda: loss_of(paged(inputs(rank, 0))).backward())
    assert {"page in slice 0", "enter slice 1", "page out gradients of slice 1"} <= seen, seen

    model = mlp()
    slow = SlowMoDistributedDataParallel(model, 1, slowmo_momentum=0.5, slowmo_frequency=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(slow(inputs(rank, 0))).backward()
    seen = ranges(lambda: slow.perform_slowmo(optimizer))
    named = "parameters from '0.weight' on"
    assert {"outer synchronise", f"outer average of {named}", f"outer step of {named}"} <= seen, seen
    return True


def _stops_early(rank, world_size):
    parallel, optimizer = sharded(mlp(), "overlap_gather", lr=0.1)
    train(parallel, optimizer, rank)
    for step in range(3):
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            loss_of(parallel(inputs(rank, step))).backward()
            if rank == 1:  # so that rank 0's gathers are on their way when its profiler stops
                work = torch.randn(400, 400)
                for _ in range(20):
                    work = torch.tanh(work @ work)
            optimizer.step()
        assert "fairshard::gather parameters of bucket 0" in {event.name for event in seen.events()}
        optimizer.zero_grad()
    return True


def test_a_profiler_may_stop_while_parameters_are_on_their_way(run_ranks):
    assert all(run_ranks(2, _stops_early))


@pytest.mark.costly
def test_phases_have_names(run_ranks):
    assert all(run_ranks(2, _phases))
