"""Models that change after they were wrapped: as under a DDP that is made anew, or refused by the parameter's name."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.models import inputs, loss_of
from support.parallel import MODES, SHARDED, assert_same, ddp, said, sharded, train
from support.ranks import device

pytestmark = pytest.mark.costly


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(10, 12)
        self.last = nn.Linear(12, 4)

    def forward(self, x):
        x = self.first(x)
        return self.last(self.new(x) if hasattr(self, "new") else x)


def grow(model, optimizer):
    """As the docstring of ``add_param_group`` promises."""
    torch.manual_seed(5)
    model.new = nn.Linear(12, 12).to(device())
    optimizer.add_param_group({"params": list(model.new.parameters()), "lr": 0.05})


def replace(model, optimizer):
    """As one does for another number of classes."""
    torch.manual_seed(5)
    model.last = nn.Linear(12, 6).to(device())
    optimizer.add_param_group({"params": list(model.last.parameters()), "lr": 0.05})


CHANGES = {"new": grow, "last": replace}


def _changed(rank, world_size, mode, name, first_steps):
    plain, ours = Growing().to(device()), Growing().to(device())
    parallel, optimizer = ddp(plain, lr=0.1, momentum=0.9)
    train(parallel, optimizer, rank, steps=range(first_steps))
    CHANGES[name](plain, optimizer)
    train(DistributedDataParallel(plain), optimizer, rank)

    wrapper, optimizer = sharded(ours, mode, lr=0.1, momentum=0.9)
    train(wrapper, optimizer, rank, steps=range(first_steps))

    def go_on():
        CHANGES[name](ours, optimizer)
        train(wrapper, optimizer, rank)

    if said(go_on, rf"'{name}\.(weight|bias)'") is None:
        assert_same(wrapper, plain, f"{mode}, {first_steps=}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_come_later_are_reduced_or_named(run_ranks, mode, name):
    run_ranks(2, _changed, mode, name, 2)


@pytest.mark.parametrize("mode", ["replicated", "gradients"])
@pytest.mark.parametrize("name", CHANGES)
def test_parameters_that_come_before_the_first_forward(run_ranks, mode, name):
    run_ranks(2, _changed, mode, name, 0)


def _not_given_to_the_optimizer(rank, world_size, mode):
    """Trainable, but nobody's: torch would leave it as it is."""
    model = Growing().to(device())
    wrapper, optimizer = sharded(model, mode, lr=0.1)
    train(wrapper, optimizer, rank, steps=range(2))
    torch.manual_seed(5)
    model.new = nn.Linear(12, 12).to(device())
    before = model.new.weight.detach().clone()

    def go_on():
        train(wrapper, optimizer, rank)

    if said(go_on, r"'new\.weight'") is None:
        assert model.new.weight.equal(before)
        plain = Growing().to(device())
        theirs = ddp(plain, lr=0.1)
        train(*theirs, rank, steps=range(2))
        torch.manual_seed(5)
        plain.new = nn.Linear(12, 12).to(device())
        train(DistributedDataParallel(plain), theirs[1], rank)
        assert_same(wrapper, plain, mode)


@pytest.mark.parametrize("mode", ["replicated", "gradients", "release_parameters+overlap_gather"])
def test_a_later_parameter_that_no_optimizer_has(run_ranks, mode):
    run_ranks(2, _not_given_to_the_optimizer, mode)


def _step_without_reduction(rank, world_size, mode):
    wrapper, optimizer = sharded(Growing().to(device()), mode, lr=0.1)
    train(wrapper, optimizer, rank, steps=range(2))
    optimizer.zero_grad()

    def run():
        with wrapper.no_sync():
            loss_of(wrapper(inputs(rank, 3))).backward()
        optimizer.step()

    assert said(run, "no_sync") is not None, "ranks step what each has by itself, and nothing is said"


@pytest.mark.parametrize("mode", SHARDED)
def test_a_step_of_gradients_that_were_not_reduced_is_not_silent(run_ranks, mode):
    run_ranks(2, _step_without_reduction, mode)
