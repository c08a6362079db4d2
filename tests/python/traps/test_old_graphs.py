"""A graph from before ``step()`` holds old values: as in torch, autograd notices that they were overwritten."""

import pytest

from support.models import inputs, loss_of, mlp
from support.parallel import MODES, ddp, sharded

pytestmark = pytest.mark.costly

ERROR = "modified by an inplace operation"


def _second_backward(rank, world_size, mode):
    parallel, optimizer = ddp(mlp(), lr=0.1) if mode == "ddp" else sharded(mlp(), mode, lr=0.1)
    for step in range(3):  # in the first, buckets find their order
        optimizer.zero_grad()
        loss = loss_of(parallel(inputs(rank, step)))
        loss.backward(retain_graph=step == 2)
        optimizer.step()
    with pytest.raises(RuntimeError, match=ERROR):
        loss.backward()


@pytest.mark.parametrize("mode", ["ddp", *MODES])
def test_backward_through_an_old_graph_is_an_error(run_ranks, mode):
    run_ranks(2, _second_backward, mode)


def _late_backward(rank, world_size, mode):
    """Forward, then a step of other gradients, then the backward of that forward."""
    parallel, optimizer = ddp(mlp(), lr=0.1) if mode == "ddp" else sharded(mlp(), mode, lr=0.1)
    early = loss_of(parallel.module(inputs(rank, 0)))
    loss_of(parallel(inputs(rank, 1))).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=ERROR):
        early.backward()


@pytest.mark.parametrize("mode", ["ddp", "replicated", "optimizer", "gradients", "step_in_backward", "overlap_gather"])
def test_a_forward_before_the_step_cannot_go_backward_after_it(run_ranks, mode):
    run_ranks(2, _late_backward, mode)


def _versions(rank, world_size, mode):
    """What else relies on versions (caches keyed by them, saved tensors of custom functions) sees the step."""
    model = mlp()
    parallel, optimizer = sharded(model, mode, lr=0.1)
    for step in range(2):
        loss_of(parallel(inputs(rank, step))).backward()
        before = [parameter._version for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    after = [parameter._version for parameter in model.parameters()]
    assert all(a > b for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("mode", ["replicated", "optimizer", "gradients", "overlap_gather", "release_parameters"])
def test_a_step_counts_as_an_inplace_operation(run_ranks, mode):
    run_ranks(2, _versions, mode)
