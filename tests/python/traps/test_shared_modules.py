"""Two wrappers with a module in common (a GAN, a student beside its teacher) train as two DDPs do."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp
from support.parallel import MODES, assert_same, ddp, limited, said, sharded, train
from support.ranks import device

SGD = torch.optim.SGD
OPTIONS = {"lr": 0.1, "momentum": 0.9}


def two_models():
    torch.manual_seed(2)
    body = nn.Sequential(nn.Linear(10, 16), nn.Tanh())
    pair = nn.Sequential(body, nn.Linear(16, 3)), nn.Sequential(body, nn.Linear(16, 5))
    return [model.to(device()) for model in pair]


def parameters(models):
    return list(dict.fromkeys(itertools.chain.from_iterable(model.parameters() for model in models)))


def together(wrappers, optimizers, rank):
    """One loss of both, one backward."""
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(loss_of(wrapper(inputs(rank, step))) for wrapper in wrappers).backward()
        for optimizer in optimizers:
            optimizer.step()


def in_turn(wrappers, optimizers, rank):
    """Each with its own loss, backward and step."""
    for step in range(3):
        for wrapper, optimizer in zip(wrappers, itertools.cycle(optimizers), strict=False):
            optimizer.zero_grad()
            loss_of(wrapper(inputs(rank, step))).backward()
            optimizer.step()


def accumulated(wrappers, optimizers, rank):
    """Two backwards, and then the step."""
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for wrapper in wrappers:
            loss_of(wrapper(inputs(rank, step))).backward()
        for optimizer in optimizers:
            optimizer.step()


LOOPS = {"together": together, "in turn": in_turn, "accumulated": accumulated}


def run(loop, wrappers, optimizers, rank):
    with limited(30):  # two reducers that get into each other's way may wait for ever
        LOOPS[loop](wrappers, optimizers, rank)


def expected(rank, loop, is_one_optimizer):
    models = two_models()
    optimizers = [SGD(parameters(models), **OPTIONS)]
    if not is_one_optimizer:
        optimizers = [SGD(model.parameters(), **OPTIONS) for model in models]
    run(loop, [DistributedDataParallel(model) for model in models], optimizers, rank)
    return models


def check(ours, theirs, what):
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b, what, rounded=True)


def _replicated(rank, world_size, loop, is_one_optimizer):
    models = two_models()
    optimizers = [SGD(parameters(models), **OPTIONS)]
    if not is_one_optimizer:
        optimizers = [SGD(model.parameters(), **OPTIONS) for model in models]
    run(loop, [ShardedDataParallel(model) for model in models], optimizers, rank)
    check(models, expected(rank, loop, is_one_optimizer), loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("is_one_optimizer", [True, False])
def test_without_an_oss(run_ranks, loop, is_one_optimizer):
    run_ranks(2, _replicated, loop, is_one_optimizer)


def _one_oss(rank, world_size, loop, options):
    models = two_models()
    optimizer = OSS(parameters(models), SGD, **options, **OPTIONS)
    run(loop, [ShardedDataParallel(model, optimizer) for model in models], [optimizer], rank)
    optimizer.wait_for_parameters()
    check(models, expected(rank, loop, True), loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("options", [{}, {"overlap_gather": True}], ids=["gradients", "overlap_gather"])
def test_with_one_oss(run_ranks, loop, options):
    run_ranks(2, _one_oss, loop, options)


def _two_oss(rank, world_size, loop):
    """Both optimizers have the common part. As in torch, or refused where the second takes what the first has."""
    models = two_models()

    def train():
        optimizers = [OSS(model.parameters(), SGD, **OPTIONS) for model in models]
        wrappers = [ShardedDataParallel(*pair) for pair in zip(models, optimizers, strict=True)]
        run(loop, wrappers, optimizers, rank)

    if said(train, "OSS") is None:
        check(models, expected(rank, loop, False), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_with_two_oss(run_ranks, loop):
    run_ranks(2, _two_oss, loop)


def _wrapped_again(rank, world_size):
    plain = mlp()
    for _ in range(2):
        train(*(theirs := ddp(plain, **OPTIONS)), rank)
    for mode in MODES:
        for is_kept in (False, True):
            model, held = mlp(), []
            for _ in range(2):
                held = [*held, sharded(model, mode, **OPTIONS)] if is_kept else [sharded(model, mode, **OPTIONS)]
                with limited(30):
                    train(*held[-1], rank)
                    held[-1][0].wait_for_parameters()
            assert_same(held[-1][0], theirs[0], (mode, is_kept))


def test_a_module_is_trained_once_more_with_a_new_wrapper_and_optimizer(run_ranks):
    """As a notebook does it, or Lightning's second fit(): the old ones are gone, or still there."""
    run_ranks(2, _wrapped_again)
