"""What is dropped is gone, at once and without the garbage collector: memory, threads, and forked processes end."""

import contextlib
import gc
import multiprocessing
import os
import weakref

import pytest
import torch
from torch import nn

from support.models import loss_of
from support.parallel import MODES, limited, sharded
from support.ranks import device

pytestmark = pytest.mark.costly

CYCLES = 10


def big():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 1200), nn.Tanh(), nn.Linear(1200, 1200), nn.Linear(1200, 5)).to(device())


def used(mode, steps=2):
    """A model that was trained, with its wrapper and its optimizer, and nothing else that holds them."""
    model = big()
    parallel, optimizer = sharded(model, mode, bucket_bytes=None, lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(parallel(torch.ones(2, 10, device=device()))).backward()
        optimizer.step()
    if mode != "replicated":
        optimizer.wait_for_parameters()
    return [model, parallel, optimizer]


@contextlib.contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _parameters_die(rank, world_size, mode):
    used(mode)
    with without_collector():
        held = used(mode)
        parameters = [weakref.ref(parameter) for parameter in held[0].parameters()]
        wrappers = [weakref.ref(each) for each in held]
        held.clear()
        alive = [ref() for ref in wrappers if ref() is not None]
        assert not alive, [type(each).__name__ for each in alive]
        assert not [ref for ref in parameters if ref() is not None], "parameters are alive"


@pytest.mark.parametrize("mode", MODES)
def test_what_is_dropped_dies_at_once(run_ranks, mode):
    run_ranks(2, _parameters_die, mode)


def _memory_stays(rank, world_size, mode):
    sizes = []
    for _ in range(CYCLES):
        used(mode)
        gc.collect()
        sizes.append(resident_bytes())
    weights = sum(parameter.nbytes for parameter in big().parameters())
    # the allocator keeps a few models' worth for itself, now more and now less
    grown = (min(sizes[-3:]) - max(sizes[:3])) / weights
    assert grown < 3, f"{grown:.1f} times the model's size stay after {CYCLES} cycles"


@pytest.mark.cpu_only("looks at the process's memory")
@pytest.mark.parametrize("mode", ["replicated", "gradients", "all"])
def test_cycles_leave_no_memory(run_ranks, mode):
    run_ranks(2, _memory_stays, mode)


def _in_child(held):
    with limited(20):
        held.clear()
        gc.collect()


def _fork(rank, world_size, mode):
    """As a DataLoader's worker does that was forked with the model in memory, and ends."""
    held = used(mode)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(held,))
    child.start()
    child.join(30)
    was_alive = child.is_alive()
    if was_alive:
        child.kill()
    assert not was_alive, "the child hangs"
    assert child.exitcode == 0, f"the child ended with {child.exitcode}"
    # and the parent goes on
    _, parallel, optimizer = held
    loss_of(parallel(torch.ones(2, 10))).backward()
    optimizer.step()
    parallel.state_dict()


@pytest.mark.cpu_only("CUDA does not survive a fork")
@pytest.mark.parametrize("mode", ["replicated", "gradients", "overlap_gather", "release_parameters+overlap_gather"])
def test_a_forked_process_frees_the_wrapper_and_ends(run_ranks, mode):
    run_ranks(2, _fork, mode)
