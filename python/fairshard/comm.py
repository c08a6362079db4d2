"""Collectives with one best way per backend, on groups made by torch.distributed.

Over Gloo they send half the bytes of Gloo's own reduce-scatter, sum in rank order (the same bits on
every run), and name the rank and the sizes when ranks disagree. They return a handle at once;
results are valid after its ``wait()``.
"""

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
        timeout_s: how long any wait may take before it ends in an error, in seconds.
    """

    def __init__(self, process_group: "dist.ProcessGroup | None" = None, timeout_s: float = 300) -> None:
        if process_group is None:
            if not dist.is_initialized():
                raise RuntimeError(
                    "there is no default process group: call torch.distributed.init_process_group first, or pass one"
                )
            process_group = dist.group.WORLD
        if process_group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("this process is not a member of the process group")
        super().__init__(process_group, timeout_s)
        self.process_group = process_group
