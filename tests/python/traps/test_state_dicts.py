"""State dicts of models within models, and of optimizers, as torch and torch.distributed.checkpoint handle them."""

import copy

import pytest
import torch
from torch import nn

from fairshard.experimental.nn import OffloadModel
from support.models import mlp
from support.parallel import SHARDED, assert_same, ddp, sharded, train
from support.ranks import device

pytestmark = pytest.mark.costly

ADAMW = torch.optim.AdamW


class Parent(nn.Module):
    """A model of which one part is wrapped."""

    def __init__(self, part):
        super().__init__()
        torch.manual_seed(9)
        self.net = part
        self.head = nn.Linear(5, 2).to(device())


def check_round_trip(make_part, what):
    parent = Parent(make_part(0))
    expected = {name: value.clone() for name, value in Parent(mlp(0)).state_dict().items()}
    state = {name: value.detach().clone() for name, value in parent.state_dict().items()}
    assert state.keys() == expected.keys(), f"{what}: names of the module itself, as the wrapper alone has them"
    for is_strict in (True, False):
        other = Parent(make_part(1))
        missing = other.load_state_dict(state, strict=is_strict)
        assert not missing.missing_keys and not missing.unexpected_keys, what
        for name, value in other.state_dict().items():
            torch.testing.assert_close(value.detach(), expected[name], rtol=0, atol=0, msg=f"{what}: {name}")
    parent.load_state_dict(Parent(mlp(0)).state_dict())  # a plain model's
    Parent(mlp(1)).load_state_dict(state)  # and into one
    nested = nn.ModuleList([nn.ModuleDict({"a": make_part(1)})])
    nested.load_state_dict(nested.state_dict())


def _child(rank, world_size, mode):
    check_round_trip(lambda seed: sharded(mlp(seed), mode, lr=0.1)[0], mode)


@pytest.mark.parametrize("mode", ["replicated", "gradients", "release_parameters+overlap_gather"])
def test_a_wrapper_within_a_module_loads_its_own_state(run_ranks, mode):
    run_ranks(2, _child, mode)


def test_an_offload_model_within_a_module_loads_its_own_state():
    check_round_trip(lambda seed: OffloadModel(mlp(seed), "cpu", num_slices=2), "OffloadModel")


def trained(rank, mode="gradients"):
    plain, ours = mlp(), mlp()
    theirs = ddp(plain, ADAMW, lr=1e-2)
    wrapped = sharded(ours, mode, ADAMW, lr=1e-2)
    train(*theirs, rank)
    train(*wrapped, rank)
    return wrapped, theirs


def with_ids(state, ids):
    """The same with other ids; torch goes by their places in the groups."""
    ids = iter(ids)
    named = {number: next(ids) for group in state["param_groups"] for number in group["params"]}
    groups = [{**group, "params": [named[n] for n in group["params"]]} for group in state["param_groups"]]
    return {"state": {named[n]: value for n, value in state["state"].items()}, "param_groups": groups}


IDS = {
    "shifted": range(10, 16),
    "reversed": range(5, -1, -1),
    "names": [name for name, _ in mlp().named_parameters()],
}


def _ids(rank, world_size, kind):
    _, (plain, plain_optimizer) = trained(rank)
    state = with_ids(copy.deepcopy(plain_optimizer.state_dict()), IDS[kind])
    parallel, optimizer = sharded(copy.deepcopy(plain.module), "gradients", ADAMW, lr=1e-2)
    optimizer.load_state_dict(state)
    train(plain, plain_optimizer, rank, steps=range(3, 6))
    train(parallel, optimizer, rank, steps=range(3, 6))
    assert_same(parallel, plain, kind)


@pytest.mark.parametrize("kind", IDS)
def test_state_is_found_by_its_place_in_the_groups(run_ranks, kind):
    run_ranks(2, _ids, kind)


def _before_the_first_step(rank, world_size, mode):
    plain = ADAMW(mlp().parameters(), lr=1e-2)
    _, optimizer = sharded(mlp(), mode, ADAMW, lr=1e-2)
    assert optimizer.state_dict() == plain.state_dict()
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("mode", SHARDED)
def test_there_is_a_state_dict_before_the_first_step(run_ranks, mode):
    run_ranks(2, _before_the_first_step, mode)
