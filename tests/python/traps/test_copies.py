"""Copies and pickles of wrapped models, as torch makes them of a model under DDP."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from support.models import inputs, loss_of
from support.parallel import MODES, assert_same, said, sharded, train, trained_twins

pytestmark = pytest.mark.costly

SOME_MODES = ["replicated", "gradients", "overlap_gather", "release_parameters+overlap_gather"]


def saved_and_loaded(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
}


def _module(rank, world_size, mode, way):
    """The module inside is copied as a plain module, apart from the original and from any OSS."""
    (parallel, _optimizer), (plain, _) = trained_twins(rank, mode)
    duplicate = WAYS[way](parallel.module)
    assert_same(duplicate, plain, mode)
    torch.optim.SGD(duplicate.parameters(), lr=0.1)
    duplicate(inputs(rank, 7)).sum().backward()  # alone, on one rank: no collective
    assert all(parameter.grad is not None for parameter in duplicate.parameters())
    with torch.no_grad():
        for parameter in duplicate.parameters():
            parameter.zero_()
    assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", SOME_MODES)
@pytest.mark.parametrize("way", WAYS)
def test_the_module_is_copied_as_a_plain_one(run_ranks, mode, way):
    run_ranks(2, _module, mode, way)


def _wrapper(rank, world_size, mode, way):
    (parallel, _optimizer), (plain, _) = trained_twins(rank, mode)
    duplicate = WAYS[way](parallel)
    assert_same(duplicate, plain, mode)
    # it trains by itself, as a DDP that was copied does, and the original is left alone
    twin = WAYS[way](plain)
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), rank)
    train(duplicate, torch.optim.SGD(duplicate.parameters(), lr=0.1), rank)
    assert_same(duplicate, twin, mode)
    assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", SOME_MODES)
@pytest.mark.parametrize("way", WAYS)
def test_the_wrapper_is_copied_as_ddp_is(run_ranks, mode, way):
    run_ranks(2, _wrapper, mode, way)


def _first_used(rank, world_size):
    """What comes before a first training forward needs none: the copy is made ready where it is used."""
    _, (plain, _) = trained_twins(rank, "replicated")
    x = inputs(rank, 0)

    def within_no_sync(model):
        with model.no_sync():
            loss_of(model(x)).backward()
        loss_of(model(x)).backward()

    def within_join(model):
        with model.join():
            loss_of(model(x)).backward()

    def reduced(model):
        model.reduce()
        loss_of(model(x)).backward()

    for use, reference in ((within_no_sync, within_no_sync), (within_join, None), (reduced, None)):
        (parallel, _optimizer), _ = trained_twins(rank, "gradients")
        parallel, twin = copy.deepcopy(parallel), copy.deepcopy(plain)
        for each in (parallel, twin):
            each.zero_grad()
        use(parallel)
        (reference or (lambda model: loss_of(model(x)).backward()))(twin)
        for a, b in zip(parallel.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    copy.deepcopy(parallel).sync_buffers()


def test_a_copy_that_has_not_trained_has_all_of_a_wrappers_methods(run_ranks):
    run_ranks(2, _first_used)


def _optimizer(rank, world_size):
    """A copy of the OSS alone steps copies of the parameters, as in torch; or it is refused by name."""
    (_, optimizer), (_, plain) = trained_twins(rank, "gradients")
    copied = []
    if said(lambda: copied.append(copy.deepcopy(optimizer)), "OSS") is None:
        ours, theirs = copied[0], copy.deepcopy(plain)
        for each in (ours, theirs):
            for parameter in each.param_groups[0]["params"]:
                parameter.grad = torch.full_like(parameter, 0.5)
            each.step()
        for a, b in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
            torch.testing.assert_close(a, b)


def test_a_copy_of_the_oss_works_or_is_refused(run_ranks):
    run_ranks(2, _optimizer)


def _pair(rank, world_size, mode):
    wrapped, theirs = trained_twins(rank, mode)
    copied = []
    if said(lambda: copied.extend(copy.deepcopy(wrapped)), "OSS") is None:
        theirs_copied = copy.deepcopy(theirs)
        train(*theirs_copied, rank)
        train(*copied, rank)
        assert_same(copied[0], theirs_copied[0], mode)
    train(*wrapped, rank)  # the originals are as good as before
    train(*theirs, rank)
    assert_same(wrapped[0], theirs[0], mode)


@pytest.mark.parametrize("mode", SOME_MODES)
def test_a_model_and_its_optimizer_are_copied_together_or_refused(run_ranks, mode):
    run_ranks(2, _pair, mode)


def _averaged(rank, world_size, mode):
    wrapped, theirs = trained_twins(rank, mode)
    ours, plain = AveragedModel(wrapped[0]), AveragedModel(theirs[0])
    for step in range(2):
        for average, (parallel, optimizer) in ((ours, wrapped), (plain, theirs)):
            train(parallel, optimizer, rank, steps=[5 + step])
            parallel.state_dict()
            average.update_parameters(parallel)
    for a, b in zip(ours.module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(ours(inputs(rank, 8)), plain(inputs(rank, 8)), rtol=0, atol=0)


@pytest.mark.parametrize("mode", SOME_MODES)
def test_weights_are_averaged_by_averaged_model(run_ranks, mode):
    run_ranks(2, _averaged, mode)


class Scored(Dataset):
    """Examples that workers make with a model."""

    def __init__(self, models):
        self.models = models

    def __len__(self):
        return 2

    def __getitem__(self, item):
        with torch.no_grad():
            return torch.stack([model(torch.full((10,), float(item))) for model in self.models])


def _worker(rank, world_size):
    modes = ("gradients", "overlap_gather", "release_parameters+overlap_gather")
    made = [trained_twins(rank, mode) for mode in modes]
    models = [parallel.module for (parallel, _), _ in made]
    (_, (plain, _)) = made[0]
    loader = DataLoader(Scored(models), num_workers=1, multiprocessing_context="spawn")
    with torch.no_grad():
        for item, scores in enumerate(loader):
            expected = plain.module(torch.full((10,), float(item)))
            torch.testing.assert_close(scores[0], torch.stack([expected] * len(modes)))


@pytest.mark.costly
@pytest.mark.cpu_only("workers compute on the CPU")
def test_a_spawned_worker_gets_the_models(run_ranks):
    run_ranks(2, _worker)


def _storages(rank, world_size, mode):
    """Each parameter has a storage of its own size, so whatever saves one saves no more."""
    model = nn.Sequential(nn.Linear(10, 200), nn.Linear(200, 200), nn.Linear(200, 5))
    parallel, optimizer = sharded(model, mode, bucket_bytes=None, lr=0.1)
    train(parallel, optimizer, rank, steps=range(2))
    for name, value in {**parallel.state_dict(), **dict(model.named_parameters())}.items():
        size = value.untyped_storage().nbytes()
        assert value.nbytes <= size <= value.nbytes + 64, f"{mode}: {name} of {value.nbytes} B in a storage of {size} B"
        assert value.storage_offset() == 0
        file = io.BytesIO()
        torch.save(value, file)
        assert len(file.getvalue()) < value.nbytes + 4096, name
    pointers = [parameter.untyped_storage().data_ptr() for parameter in model.parameters()]
    assert len(set(pointers)) == len(pointers)


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_has_a_storage_of_its_own_size(run_ranks, mode):
    run_ranks(2, _storages, mode)
