"""Our collectives against torch.distributed's own, on groups that torch.distributed made."""

import datetime

import pytest
import torch
import torch.distributed as dist

from fairshard import comm
from support.ranks import device


def _collectives(rank, world_size):
    group = comm.Group()
    assert (group.rank, group.size) == (rank, world_size)
    torch.manual_seed(rank)
    whole = torch.randn(world_size * 30000).to(device())

    ours, theirs = whole.clone(), whole.clone()
    comm.all_reduce(group, ours).wait()
    dist.all_reduce(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0 if world_size == 2 else 1e-5, atol=0 if world_size == 2 else 1e-5)

    part, their_part = torch.empty_like(whole[:30000]), torch.empty_like(whole[:30000])
    comm.reduce_scatter(group, part, whole, comm.ReduceOp.AVG).wait()
    dist.reduce_scatter_tensor(their_part, whole.clone())
    torch.testing.assert_close(part, their_part / world_size)

    gathered, their_gathered = torch.empty_like(whole), torch.empty_like(whole)
    comm.all_gather(group, gathered, part).wait()
    dist.all_gather_into_tensor(their_gathered, part)
    assert gathered.equal(their_gathered)

    copy = whole.clone()
    work = comm.broadcast(group, copy, root=world_size - 1)
    work.wait()
    dist.broadcast(whole, src=world_size - 1)
    assert copy.equal(whole)
    assert work.is_done()
    comm.barrier(group)
    return group.sent_bytes


@pytest.mark.parametrize("world_size", [2, 3])
def test_same_as_torch_distributed(run_ranks, backend, world_size):
    sent = run_ranks(world_size, _collectives)
    if backend == "nccl":  # which does not tell what it sends
        return
    # all-reduce 2 (N-1)/N, reduce-scatter and all-gather (N-1)/N of the whole; one rank broadcasts
    peers, part = world_size - 1, 30000 * 4
    times = 2 if backend == "fairshard" else 1  # there torch's own are ours, and count as well
    assert sent[0] == times * peers * part * 4
    assert sent[-1] == times * peers * part * (4 + world_size)


def _subgroup(rank, world_size):
    pair = dist.new_group([1, 2])
    if rank == 0:
        with pytest.raises(ValueError, match="not a member"):
            comm.Group(pair)
        return 0.0
    tensor = torch.full((5,), float(rank), device=device())
    comm.all_reduce(comm.Group(pair), tensor).wait()
    return tensor[0].item()


def test_a_group_of_some_ranks(run_ranks):
    assert run_ranks(3, _subgroup) == [0.0, 3.0, 3.0]


def _disagree(rank, world_size):
    group = comm.Group(dist.new_group([0, 1]))  # it will be broken, and the world is needed to the end
    with pytest.raises(
        dist.DistBackendError, match=r"all_reduce #0.*'weights'.*Float\[4\].*Float\[5\]|Float\[5\].*Float\[4\]"
    ):
        comm.all_reduce(group, torch.ones(4 + rank), label="weights").wait()
    with pytest.raises(dist.DistBackendError, match="failed before"):
        comm.barrier(group)
    return True


@pytest.mark.cpu_only("NCCL does not compare what ranks send, and waits for ever")
def test_ranks_that_disagree_get_a_torch_exception(run_ranks):
    assert run_ranks(2, _disagree) == [True, True]


def _timeout(rank, world_size):
    group = comm.Group(dist.new_group([0, 1], timeout=datetime.timedelta(seconds=0.2)))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"barrier #0.*rank 1 timed out"):
            comm.barrier(group)
    dist.barrier()
    return True


@pytest.mark.cpu_only("NCCL ends the process when a time is over")
def test_a_peer_that_does_not_come(run_ranks):
    assert run_ranks(2, _timeout) == [True, True]


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match="init_process_group"):
        comm.Group()


def _bad_tensors(rank, world_size):
    group = comm.Group()
    with pytest.raises(TypeError, match="Bool"):
        comm.all_reduce(group, torch.ones(3, dtype=torch.bool, device=device()))
    with pytest.raises(ValueError, match="not contiguous"):
        comm.all_reduce(group, torch.ones(3, 4, device=device()).t())
    with pytest.raises(ValueError, match="root 7"):
        comm.broadcast(group, torch.ones(3, device=device()), root=7)
    return True


def test_bad_tensors(run_ranks):
    assert run_ranks(1, _bad_tensors) == [True]
