"""State dicts of models within models, and of optimizers, as torch and torch.distributed.checkpoint handle them."""

import copy
import io

import pytest
import torch
import torch.distributed.checkpoint.state_dict as dcp
from torch import nn
from torch.distributed import checkpoint

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


def flat(state):
    """Optimizer state by parameter and key."""
    return {(name, key): value for name, values in state.get("state", {}).items() for key, value in values.items()}


def _distributed_checkpoint(rank, world_size, mode, is_consolidated, folder):
    """Asking for the state changes nothing, and gives what it gives for DDP and torch's optimizer."""
    (parallel, optimizer), (plain, plain_optimizer) = trained(rank, mode)
    expected_model, expected = copy.deepcopy(dcp.get_state_dict(plain, plain_optimizer))
    if is_consolidated:
        optimizer.consolidate_state_dict(-1)
    found_model, found = dcp.get_state_dict(parallel, optimizer)
    assert found_model.keys() == expected_model.keys() and found["param_groups"] == expected["param_groups"]
    if not is_consolidated:  # each rank has its own part, and files of all parts have the whole
        checkpoint.save(found, checkpoint_id=folder)
        found = copy.deepcopy(expected)
        for value in flat(found).values():
            value.zero_()
        checkpoint.load(found, checkpoint_id=folder)
    torch.testing.assert_close(flat(found), flat(expected), rtol=0, atol=0, check_device=False)
    train(plain, plain_optimizer, rank, steps=range(3, 6))
    train(parallel, optimizer, rank, steps=range(3, 6))
    assert_same(parallel, plain, "asking for the state has changed training")


@pytest.mark.parametrize("mode", ["gradients", "optimizer", "overlap_gather", "release_parameters+overlap_gather"])
@pytest.mark.parametrize("is_consolidated", [True, False], ids=["consolidated", "spread"])
def test_distributed_checkpoint_gets_the_state(run_ranks, mode, is_consolidated, tmp_path):
    run_ranks(2, _distributed_checkpoint, mode, is_consolidated, tmp_path)


def _set_state(rank, world_size, mode, source):
    """A state of DDP's or of our own is loaded by a new model."""
    ours, (plain, plain_optimizer) = trained(rank, mode)
    ours[1].consolidate_state_dict(-1)
    pair = ours if source == "ours" else (plain, plain_optimizer)
    model_state, optimizer_state = copy.deepcopy(dcp.get_state_dict(*pair))
    parallel, optimizer = sharded(mlp(seed=1), mode, ADAMW, lr=1e-2)
    dcp.set_state_dict(parallel, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    train(plain, plain_optimizer, rank, steps=range(3, 6))
    train(parallel, optimizer, rank, steps=range(3, 6))
    assert_same(parallel, plain)


@pytest.mark.parametrize("source", ["ours", "DDP's"])
@pytest.mark.parametrize("mode", SHARDED)
def test_distributed_checkpoint_sets_the_state(run_ranks, mode, source):
    run_ranks(2, _set_state, mode, source)


def _full_state(rank, world_size, mode):
    """Whole and in host memory on the first rank, nothing on others, as with DDP; and again after more steps."""
    options = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
    (parallel, optimizer), (plain, plain_optimizer) = trained(rank, mode)
    for steps in ((3, 4), (5,)):
        optimizer.consolidate_state_dict(-1)
        found = dcp.get_state_dict(parallel, optimizer, options=options)
        expected = dcp.get_state_dict(plain, plain_optimizer, options=options)
        assert found[0].keys() == expected[0].keys() and bool(found[0]) == (rank == 0)
        assert found[1].get("param_groups") == expected[1].get("param_groups")
        for ours, theirs in ((found[0], expected[0]), (flat(found[1]), flat(expected[1]))):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        train(plain, plain_optimizer, rank, steps=steps)
        train(parallel, optimizer, rank, steps=steps)


@pytest.mark.parametrize("mode", ["gradients", "release_parameters+overlap_gather"])
def test_distributed_checkpoint_gets_the_whole_state_on_the_first_rank(run_ranks, mode):
    run_ranks(2, _full_state, mode)


def _names(rank, world_size):
    """Parameters, buffers and modules have one name each, wherever the wrapper stands."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device())
    names = module.state_dict().keys()
    wrapper, _ = sharded(module, "gradients", lr=0.1)
    for root, prefix in ((wrapper, ""), (nn.ModuleDict({"body": wrapper}), "body.")):
        found = [name for name, _ in (*root.named_parameters(), *root.named_buffers())]
        assert sorted(found) == sorted(prefix + name for name in names)
        assert list(root.modules()).count(module) == list(root.modules()).count(wrapper) == 1
        assert root.get_parameter(f"{prefix}0.weight") is module[0].weight
        assert root.get_submodule(f"{prefix}1") is module[1]


def test_names_are_those_of_the_state_dict(run_ranks):
    run_ranks(2, _names)


def _asked_late(rank, world_size):
    """A state that was consolidated before the last step is not given out as if it were the present one."""
    (parallel, optimizer), _ = trained(rank)
    optimizer.consolidate_state_dict(-1)
    assert optimizer.state_dict()["state"]
    train(parallel, optimizer, rank, steps=[3])
    with pytest.raises(RuntimeError, match="consolidate_state_dict"):
        torch.save(optimizer.state_dict(), io.BytesIO())


def test_a_state_of_before_the_last_step_is_not_saved(run_ranks):
    run_ranks(2, _asked_late)


def _own_part(rank, world_size, mode):
    """What state_dict() gives without consolidation takes the optimizer back to where it was."""
    (parallel, optimizer), _ = trained(rank, mode)
    model, state = copy.deepcopy(parallel.state_dict()), copy.deepcopy(optimizer.state_dict())
    optimizer.consolidate_state_dict(-1)
    before = copy.deepcopy(optimizer.state_dict())
    assert state["param_groups"] == before["param_groups"]
    train(parallel, optimizer, rank, steps=[3])
    parallel.load_state_dict(model)
    optimizer.load_state_dict(state)
    optimizer.consolidate_state_dict(-1)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["optimizer", "gradients", "overlap_gather", "step_in_backward"])
def test_a_rank_s_own_part_can_be_loaded_back(run_ranks, mode):
    run_ranks(2, _own_part, mode)
