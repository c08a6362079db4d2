"""Shards within a node and replicas between nodes (HSDP): two nodes of two ranks, in one start of processes."""

import math
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from fairshard import comm
from fairshard.checkpoint import Checkpoint
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale, ShardedGradScaler
from support.models import inputs, loss_of, mlp
from support.parallel import CLIPPABLE, SHARDED, assert_same, ddp, limited, sharded, train
from support.ranks import device

SGD = {"lr": 0.1, "momentum": 0.9}


def ddp_in_two_sums(mesh):
    """torch's DDP with gradients that are summed within nodes and then between them, as a mesh does it.

    Its own all-reduce sums four ranks in another order, which rounds otherwise.
    """
    model = mlp()
    parallel = DistributedDataParallel(model)

    def sum_twice(_, bucket):
        flat = bucket.buffer().div_(4)
        dist.all_reduce(flat, group=mesh.get_group(1))
        dist.all_reduce(flat, group=mesh.get_group(0))
        done = torch.futures.Future()
        done.set_result(flat)
        return done

    parallel.register_comm_hook(None, sum_twice)
    return parallel, torch.optim.SGD(model.parameters(), **SGD)


def trains_as_ddp(rank, mesh):
    theirs = ddp_in_two_sums(mesh)
    clipped = ddp_in_two_sums(mesh)
    train(*theirs, rank)
    train(*(plain := ddp(mlp(), **SGD)), rank)
    assert_same(theirs[0], plain[0], "plain DDP", rounded=True)
    norms = train(*clipped, rank, clip=lambda: torch.nn.utils.clip_grad_norm_(clipped[0].parameters(), 0.5))
    for mode in SHARDED:
        with limited(60):
            ours = sharded(mlp(rank), mode, mesh=mesh, **SGD)
            train(*ours, rank)
            assert_same(ours[0], theirs[0], mode, rounded=mode == "optimizer")  # which sums over all ranks at once
            if mode in CLIPPABLE:
                ours = sharded(mlp(rank), mode, mesh=mesh, **SGD)
                own_norms = train(*ours, rank, clip=lambda ours=ours: ours[1].clip_grad_norm(0.5))
                torch.testing.assert_close(own_norms, norms, msg=mode)
                assert_same(ours[0], clipped[0], mode, rounded=True)


def sends_little_between_nodes(rank, mesh):
    parallel, optimizer = sharded(mlp(), "gradients", mesh=mesh, **SGD)
    train(parallel, optimizer, rank)
    groups = [optimizer._mesh.shards, optimizer._mesh.replicas]
    before = [group.sent_bytes for group in groups]
    train(parallel, optimizer, rank, (3,))
    intra, inter = (group.sent_bytes - sent for group, sent in zip(groups, before, strict=True))
    # Padded to whole shards: 2 P (n-1)/n within a node of n, and 2 (P/n) (m-1)/m between m nodes.
    (layout,) = optimizer.sharded_step.flat_groups
    flat = sum(layout.bounds(bucket)[-1] for bucket in range(layout.buckets))
    assert (intra, inter) == (2 * flat * 4 // 2, flat * 4 // 2)


def looks_the_same_on_all(rank, mesh):
    parallel, optimizer = sharded(mlp(), "gradients", mesh=mesh, **SGD)
    theirs = ddp_in_two_sums(mesh)
    for each in (parallel, theirs[0]):
        each.zero_grad()
        loss_of(each(inputs(rank, 0))).backward()
    for own, other in zip(parallel.parameters(), theirs[0].parameters(), strict=True):
        torch.testing.assert_close(own.grad.norm(), other.grad.norm())
    # within no_sync() gradients add up, and are then summed over all
    with parallel.no_sync():
        loss_of(parallel(inputs(rank, 1))).backward()
    with theirs[0].no_sync():
        loss_of(theirs[0](inputs(rank, 1))).backward()
    for each, its in ((parallel, optimizer), theirs):
        loss_of(each(inputs(rank, 2))).backward()
        its.step()
    assert_same(parallel, theirs[0], "no_sync", rounded=True)
    # an infinity on one rank of one node has all skip the step
    scaler = ShardedGradScaler(init_scale=8.0, device=device().type)
    before = [p.detach().clone() for p in parallel.parameters()]
    for is_infinite in (True, False):
        optimizer.zero_grad()
        factor = math.inf if is_infinite and rank == 3 else 1.0
        scaler.scale(loss_of(parallel(inputs(rank, 3))) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        moved = any(not a.equal(b) for a, b in zip(before, parallel.parameters(), strict=True))
        assert (moved, scaler.get_scale()) == (not is_infinite, 4.0)
    # states are whole on the recipient, which is counted over all ranks
    optimizer.consolidate_state_dict(3)
    if rank == 3:
        state = optimizer.state_dict()
        other = torch.optim.SGD(mlp().parameters(), **SGD)
        other.load_state_dict(state)
        assert len(state["state"]) == 6
    # narrow wires, in both sums
    narrow = OSS((model := mlp()).parameters(), torch.optim.SGD, mesh=mesh, bucket_bytes=2000, **SGD)
    wrapped = ShardedDataParallel(model, narrow, reduce_dtype=torch.bfloat16, mesh=mesh)
    train(wrapped, narrow, rank)
    wide = sharded(mlp(), "gradients", mesh=mesh, **SGD)
    train(*wide, rank)
    for a, b in zip(model.parameters(), wide[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
        first = a.detach().clone()
        dist.broadcast(first, 0)
        assert first.equal(a)  # all ranks have one model


def saves_once(rank, mesh):
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    options = {"optim": torch.optim.AdamW, "lr": 0.01}
    saved = sharded(mlp(), "gradients", mesh=mesh, **options)
    train(*saved, rank)
    with Checkpoint(folder[0], {"model": saved[0], "optimizer": saved[1]}) as checkpoint:
        checkpoint.save(3)
    train(*saved, rank, (3, 4))
    for other in ({"mesh": mesh}, {}):  # with replicas, and over all ranks
        resumed = sharded(mlp(7), "gradients", **other, **options)
        with Checkpoint(folder[0], {"model": resumed[0], "optimizer": resumed[1]}) as checkpoint:
            checkpoint.load()
        train(*resumed, rank, (3, 4))
        assert_same(resumed[0], saved[0], other, rounded=not other)


def joins(rank, mesh):
    parallel, optimizer = sharded(mlp(), "gradients", mesh=mesh, **SGD)
    with parallel.join():
        train(parallel, optimizer, rank, range(1 + rank))
    for value in parallel.state_dict().values():
        first = value.clone()
        dist.broadcast(first, 0)
        assert first.equal(value)


def refuses(rank, mesh):
    with pytest.raises(ValueError, match="both a process group and a mesh are given"):
        OSS(mlp().parameters(), torch.optim.SGD, dist.group.WORLD, mesh=mesh, lr=0.1)
    with pytest.raises(ValueError, match="the mesh has 3 dimensions"):
        OSS(mlp().parameters(), torch.optim.SGD, mesh=init_device_mesh(device().type, (2, 1, 2)), lr=0.1)
    with pytest.raises(ValueError, match="a mesh of 4 x 2 has 8 ranks, but the group of all has 4"):
        comm._core.Mesh(comm.Group(), comm.Group(mesh.get_group(1)), comm.Group())
    with pytest.raises(ValueError, match=r"the ranks' options differ: rank 0 has .*, replicas=2, rank 2 has "):
        OSS(mlp().parameters(), torch.optim.SGD, mesh=mesh if rank < 2 else None, lr=0.1)
    parallel, optimizer = sharded(mlp(), "gradients", mesh=mesh, **SGD)
    with pytest.raises(RuntimeError, match=r"cannot be compared \(AdaScale\) in a mesh with replicas"):
        train(parallel, AdaScale(optimizer), rank)


def _mesh(rank, world_size):
    mesh = init_device_mesh(device().type, (2, 2), mesh_dim_names=("replicate", "shard"))
    trains_as_ddp(rank, mesh)
    sends_little_between_nodes(rank, mesh)
    looks_the_same_on_all(rank, mesh)
    saves_once(rank, mesh)
    joins(rank, mesh)
    refuses(rank, mesh)
    return True


@pytest.mark.costly
def test_two_nodes_of_two_ranks(run_ranks):
    assert all(run_ranks(4, _mesh))
