"""c10d's collectives with labels and unequal parts, on groups made by torch.distributed, and a backend of our own.

The backend "fairshard" moves CPU tensors by direct exchange between all ranks: each byte is sent once, sums are taken
in rank order (the same bits on every run), and ranks that disagree get an error that names rank, sizes and label.
Groups over plain Gloo get the same here, over Gloo's own connections. Collectives return a handle at once; results are
valid after its ``wait()``.
"""

import weakref

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
    reduce_scatter,
)

__all__ = [
    "Group",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_all",
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
