"""The process groups inside and between nodes."""

from typing import Any

import torch.distributed as dist

from fairshard import comm
from fairshard._core import comm as _core


def make_groups(
    world: comm.Group, ranks_per_node: int, local_group: Any, master_group: Any
) -> tuple[comm.Group, comm.Group]:
    """The ranks of this rank's node, and those that have its place on every node.

    Groups that are given are used. FairScale's master group has the first rank of each node; the others, which are not
    in it, make theirs. What is made otherwise is gone with the wrapper, where torch would keep its own until the end.
    """
    ranks = dist.get_process_group_ranks(world.process_group)
    node, place = divmod(world.rank, ranks_per_node)
    inside = ranks[node * ranks_per_node : (node + 1) * ranks_per_node]
    between = ranks[place::ranks_per_node]
    own = (None, None)
    if local_group is None or master_group is None:  # on all ranks
        own = _core.node_groups(world, ranks_per_node)
    return (
        comm.Group(own[0]) if local_group is None else _given(local_group, inside, "local_node_group"),
        comm.Group(own[1]) if master_group is None else _given(master_group, between, "master_group"),
    )


def _given(group: Any, ranks: list[int], name: str) -> comm.Group:
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        group = dist.new_group(ranks, use_local_synchronization=True)
    elif dist.get_process_group_ranks(group) != ranks:
        raise ValueError(f"{name} has ranks {dist.get_process_group_ranks(group)}, but must have {ranks}")
    return comm.Group(group)
