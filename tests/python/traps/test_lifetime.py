"""What is dropped is gone, at once and without the garbage collector: memory, threads, and forked processes end."""

import contextlib
import gc
import multiprocessing
import os
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fairshard import comm
from fairshard.checkpoint import Checkpoint
from fairshard.experimental.nn import OffloadModel
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
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


def communication_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return names.count("fairshard-comm")


def _thread_ends(rank, world_size):
    """The communication thread is there while a process group is, and no longer."""
    process_group = dist.new_group(list(range(world_size)))
    module = nn.Linear(3, 3)
    parallel = ShardedDataParallel(module, OSS(module.parameters(), lr=0.1, group=process_group), process_group)
    parallel(torch.ones(2, 3)).sum().backward()
    assert communication_threads() == 1
    del parallel, module
    dist.destroy_process_group(process_group)
    del process_group
    gc.collect()
    assert communication_threads() == 0


@pytest.mark.cpu_only("NCCL has threads of its own")
def test_the_communication_thread_ends_with_the_process_group(run_ranks):
    run_ranks(2, _thread_ends)


def _groups_end(rank, world_size):
    """Those between and within nodes, which every wrapper makes for itself, with their threads and connections."""
    counts = []
    for _ in range(3):
        model = nn.Linear(10, 5)
        parallel = SlowMoDistributedDataParallel(model, nprocs_per_node=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(parallel(torch.ones(2, 10))).backward()
        optimizer.step()
        parallel.perform_slowmo(optimizer)
        del parallel, optimizer
        gc.collect()
        counts.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))))
    assert len(set(counts)) == 1, f"threads and descriptors: {counts}"


@pytest.mark.cpu_only("NCCL has threads of its own")
def test_the_groups_of_slowmo_end_with_the_wrapper(run_ranks):
    run_ranks(2, _groups_end)


def _free(held):
    with limited(20):
        held.clear()
        gc.collect()


def free_in_child(held, free=_free):
    """Lets go of it in a process that was forked from this one, and ends that."""
    child = multiprocessing.get_context("fork").Process(target=free, args=(held,))
    child.start()
    child.join(30)
    was_alive = child.is_alive()
    if was_alive:
        child.kill()
    assert not was_alive, "the child hangs"
    assert child.exitcode == 0, f"the child ended with {child.exitcode}"


def _fork(rank, world_size, mode):
    """As a DataLoader's worker does that was forked with the model in memory, and ends."""
    held = used(mode)
    free_in_child(held)
    # and the parent goes on
    _, parallel, optimizer = held
    loss_of(parallel(torch.ones(2, 10))).backward()
    optimizer.step()
    parallel.state_dict()


@pytest.mark.cpu_only("CUDA does not survive a fork")
@pytest.mark.parametrize("mode", ["replicated", "gradients", "overlap_gather", "release_parameters+overlap_gather"])
def test_a_forked_process_frees_the_wrapper_and_ends(run_ranks, mode):
    run_ranks(2, _fork, mode)


def _free_with_group(held):
    with limited(20):
        with pytest.raises(RuntimeError, match="was forked from the one that made the process group"):
            comm.all_reduce(held[0], torch.ones(4))
        dist.destroy_process_group(held.pop().process_group)
        gc.collect()


def _fork_with_group(rank, world_size):
    """A process group over our own backend, which the child lets go of as well."""
    ranks = list(range(world_size))
    held = [comm.Group(dist.new_group(ranks, backend="fairshard"))]
    comm.all_reduce(held[0], torch.ones(4)).wait()
    free_in_child(held, _free_with_group)
    found = torch.ones(4)
    comm.all_reduce(held[0], found).wait()
    assert found.tolist() == [world_size] * 4


@pytest.mark.cpu_only("the backend is one for CPUs")
def test_a_forked_process_frees_the_process_group(run_ranks):
    run_ranks(2, _fork_with_group)


def test_a_forked_process_frees_an_offloaded_model_and_its_stepping_threads():
    model = big()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # All that leads to its threads, and no other name for them: the child must be the one to end them.
    held = [OffloadModel(model, torch.device("cpu"), optimizer=optimizer, optimizer_threads=2), optimizer]
    del model, optimizer
    for _ in range(2):
        loss_of(held[0](torch.ones(2, 10))).backward()
        held[1].step()
        free_in_child(held)


def test_a_forked_process_frees_a_checkpoint_that_is_being_written(tmp_path):
    held = [Checkpoint(tmp_path, {"model": big()})]
    held[0].save(1, blocking=False)
    free_in_child(held)
    held[0].wait()
    assert Checkpoint(tmp_path, {"model": big()}).load().step == 1
