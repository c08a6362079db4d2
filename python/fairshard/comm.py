"""c10d's collectives with labels and unequal parts, on groups made by torch.distributed, and a backend of our own.

The backend "fairshard" moves CPU tensors by direct exchange between all ranks: each byte is sent once, sums are taken
in rank order (the same bits on every run), and ranks that disagree get an error that names rank, sizes and label.
Groups over plain Gloo get the same here, over Gloo's own connections. Collectives return a handle at once; results are
valid after its ``wait()``.
"""

import os
import warnings
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from fairshard._core import comm as _core
from fairshard._core.comm import (
    ReduceOp,
    Work,
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    broadcast_all,
    explain_waits,
    explain_waits_after,
    explain_waits_on_signal,
    note_step,
    reduce_scatter,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "Group",
    "Mesh",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_all",
    "explain_waits",
    "explain_waits_after",
    "explain_waits_on_signal",
    "init_process_group",
    "note_step",
    "reduce_scatter",
]


_states: "weakref.WeakKeyDictionary[dist.ProcessGroup, _core.Group]" = weakref.WeakKeyDictionary()


class Group(_core.Group):
    """The ranks of a torch.distributed process group (the default one if none is given).

    Collectives of one group must be started in the same order on all of its ranks. When one fails,
    the group is broken, and every later call raises the first error.

    Example::

        group = Group()
        work = all_reduce(group, tensor, ReduceOp.AVG)
        work.wait()

    Args:
        process_group: any process group of torch.distributed (default: the world).
    """

    def __init__(self, process_group: "dist.ProcessGroup | None" = None) -> None:
        if process_group is None:
            if not dist.is_initialized():
                raise RuntimeError(
                    "there is no default process group: call torch.distributed.init_process_group first, or pass one"
                )
            process_group = dist.group.WORLD
        if process_group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("this process is not a member of the process group")
        super().__init__(process_group)
        self.process_group = process_group
        # What is behind it lives as long as the process group: ranks that made it anew at different times would miss
        # each other's messages.
        _states.setdefault(process_group, _core.Group(process_group))


def init_process_group(backend: str | None = None, timeout_s: float = 300) -> Group:
    """Meets the other ranks, whoever has started them, and makes torch.distributed's default process group.

    Understands the variables of torchrun, Open MPI's mpirun and Slurm's srun, and is one rank alone without any. Where
    there are GPUs, the current one becomes that of the rank's number on its machine. Ranks of one machine use the
    loopback interface only, unless GLOO_SOCKET_IFNAME is set. Collective; blocks until all have come, and names those
    that have not when ``timeout_s`` seconds are over.

    Args:
        backend: as for ``torch.distributed.init_process_group`` (default: "cpu:fairshard,cuda:nccl" where every rank
            has a GPU of its own, "fairshard" where there are none).
        timeout_s: how long this, and later any wait, may take, in seconds.
    """
    rank = _core.Environment()
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(rank.local_rank % gpus)
    if rank.local_world_size == rank.world_size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = _core.meet(rank, timeout_s)
    dist.init_process_group(
        backend or _choose_backend(rank, gpus),
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    return Group()


def _choose_backend(rank: _core.Environment, gpus: int) -> str:
    if not gpus:
        return "fairshard"
    if rank.local_world_size <= gpus or os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        return "cpu:fairshard,cuda:nccl"
    if rank.local_rank == 0:
        shared = f"{rank.local_world_size} ranks share {gpus} GPU(s)"
        warnings.warn(f"{shared}, which NCCL refuses: CUDA tensors go through host memory", stacklevel=3)
    return "gloo"


class Mesh(_core.Mesh):
    """Ranks of which some shard among themselves, and others have the same shard.

    Of a DeviceMesh of two dimensions, as torch's fully_shard takes it: replicas along the first, shards along the
    second, which is best a node. Of one dimension, or a process group: all ranks shard.

    Example::

        mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard"))
        optimizer = OSS(model.parameters(), torch.optim.AdamW, mesh=mesh, lr=1e-3)

    Args:
        process_group: the ranks, where no device mesh is given (default: the world).
        device_mesh: of one or two dimensions.
    """

    def __init__(
        self, process_group: "dist.ProcessGroup | None" = None, device_mesh: "DeviceMesh | None" = None
    ) -> None:
        if device_mesh is None:
            self.all = self.shards = Group(process_group)
            self.replicas: Group | None = None
            super().__init__(self.all)
            return
        if process_group is not None:
            raise ValueError("both a process group and a mesh are given: give one of them")
        if device_mesh.ndim > 2:
            raise ValueError(
                f"the mesh has {device_mesh.ndim} dimensions, {device_mesh.mesh_dim_names}: give one of (replicate, "
                "shard), for instance mesh['dp_replicate', 'dp_shard']"
            )
        if device_mesh.ndim == 1:
            self.all = self.shards = Group(device_mesh.get_group())
            self.replicas = None
            super().__init__(self.all)
            return
        is_world = device_mesh.size() == dist.get_world_size()
        self.all = Group(None if is_world else device_mesh._flatten().get_group())
        self.replicas, self.shards = Group(device_mesh.get_group(0)), Group(device_mesh.get_group(1))
        super().__init__(self.all, self.shards, self.replicas)
