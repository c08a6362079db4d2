"""An OSS made from an optimizer, what others hold of that one, and torch's hooks on optimizers."""

import gc
import warnings
import weakref

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale
from support.models import mlp
from support.parallel import assert_same, train


def adamw(model):
    """With two groups, and options that are not the class's defaults."""
    first, *rest = model.parameters()
    return torch.optim.AdamW([{"params": [first], "lr": 0.05}, {"params": rest, "weight_decay": 0.3}], betas=(0.8, 0.9))


#: Of each kind: one that writes rates and momenta, several that take turns, one with rates of its own.
SCHEDULES = {
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
}


def train_scheduled(parallel, optimizer, schedule, rank):
    for step in range(4):
        train(parallel, optimizer, rank, [step])
        schedule.step()


def _schedulers_follow(rank):
    for name, make in SCHEDULES.items():
        plain, model = DistributedDataParallel(mlp()), mlp()
        theirs, taken = adamw(plain), adamw(model)
        expected, schedule = make(theirs), make(taken)
        ours = OSS.from_optimizer(taken, bucket_bytes=600)
        parallel = ShardedDataParallel(model, ours)
        train_scheduled(plain, theirs, expected, rank)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of schedulers that see no step before their own
            train_scheduled(parallel, ours, schedule, rank)
        assert_same(parallel, plain, name)
        for group, other in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert {**group, "params": 0} == {**other, "params": 0}, name


def _state_is_carried_over(rank):
    plain, model = DistributedDataParallel(mlp()), mlp()
    theirs, taken = adamw(plain), adamw(model)
    train(plain, theirs, rank)
    train(DistributedDataParallel(model), taken, rank)
    ours = OSS.from_optimizer(taken)
    assert not taken.state
    with pytest.raises(RuntimeError, match=r"this AdamW was taken over by OSS\.from_optimizer"):
        taken.step()
    parallel = ShardedDataParallel(model, ours)
    train(plain, theirs, rank)
    train(parallel, ours, rank)
    assert_same(parallel, plain)


def _hooks_stay(rank):
    called, model = [], mlp()
    taken = adamw(model)
    before = taken.register_step_pre_hook(lambda optimizer, *_: called.append(("before", optimizer)))
    taken.register_step_post_hook(lambda optimizer, *_: called.append(("after", optimizer)))
    taken.register_load_state_dict_post_hook(lambda optimizer: called.append(("loaded", optimizer)))
    ours = OSS.from_optimizer(taken)
    parallel = ShardedDataParallel(model, ours)
    train(parallel, ours, rank, [0])
    assert called == [("before", ours), ("after", ours)]
    before.remove()
    train(parallel, ours, rank, [0])
    assert called[2:] == [("after", ours)]
    called.clear()

    ours.register_state_dict_pre_hook(lambda optimizer: optimizer.consolidate_state_dict(-1))
    ours.register_state_dict_post_hook(lambda _, state: {**state, "run": 7})
    ours.register_state_dict_post_hook(lambda _, state: state.update(more=8))
    state = ours.state_dict()
    assert len(state["state"]) == 6 and (state["run"], state["more"]) == (7, 8)

    def halve(_, state):
        groups = [{**group, "lr": group["lr"] / 2} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    ours.register_load_state_dict_pre_hook(halve)
    ours.load_state_dict(state)
    assert [group["lr"] for group in ours.param_groups] == [0.025, 0.0005] and called == [("loaded", ours)]
    assert [group["lr"] for group in state["param_groups"]] == [0.05, 0.001]


def _groups_are_edited(rank):
    plain, model = DistributedDataParallel(mlp()), mlp()
    theirs, ours = adamw(plain), OSS.from_optimizer(adamw(model))
    parallel = ShardedDataParallel(model, ours)
    for optimizer in (theirs, ours):
        optimizer.param_groups[1].update(lr=0.02, betas=(0.5, 0.6), amsgrad=True, my_note="kept")
    train(plain, theirs, rank)
    train(parallel, ours, rank)
    assert_same(parallel, plain)
    assert ours.state_dict(all_ranks=True)["param_groups"][1]["my_note"] == "kept"
    ours.param_groups[0]["params"].append(ours.param_groups[1]["params"].pop())
    with pytest.raises(RuntimeError, match=r"not those that were sharded.*add_param_group"):
        train(parallel, ours, rank)


class WithOwnList(torch.optim.SGD):
    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.listed = [p for group in self.param_groups for p in group["params"]]


def _what_cannot_be_taken_is_refused():
    model = mlp()
    with pytest.raises(TypeError, match="WithOwnList keeps parameters in its 'listed'"):
        OSS.from_optimizer(WithOwnList(model.parameters(), lr=1.0))
    with pytest.raises(TypeError, match="OSS has no option 'momentum'"):
        OSS.from_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), momentum=0.9)
    with pytest.raises(TypeError, match="but OSS wraps one"):
        OSS.from_optimizer(OSS(model.parameters(), lr=1.0))
    with pytest.raises(TypeError, match="but AdaScale wraps one"):
        OSS.from_optimizer(AdaScale(torch.optim.SGD(mlp().parameters(), lr=1.0)))


def _taken_and_freed():
    taken = adamw(mlp())
    schedule = SCHEDULES["lambda"](taken)
    oss = weakref.ref(OSS.from_optimizer(taken))
    gc.collect()
    assert oss() is None and schedule.optimizer is taken


def _all_of_it(rank, world_size):
    _schedulers_follow(rank)
    _state_is_carried_over(rank)
    _hooks_stay(rank)
    _groups_are_edited(rank)
    _what_cannot_be_taken_is_refused()
    _taken_and_freed()


@pytest.mark.costly
def test_an_oss_takes_the_place_of_an_optimizer(run_ranks):
    run_ranks(2, _all_of_it)
