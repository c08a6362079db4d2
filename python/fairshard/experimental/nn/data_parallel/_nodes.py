"""The process groups inside and between nodes."""

from typing import Any

import torch.distributed as dist

from fairshard import comm


def make_groups(
    world: comm.Group, ranks_per_node: int, local_group: Any, master_group: Any
) -> tuple[comm.Group, comm.Group]:
    """The ranks of this rank's node, and those that have its place on every node.

    Groups that are given are used. FairScale's master group has the first rank of each node; the others, which are not
    in it, make theirs.
    """
    ranks = dist.get_process_group_ranks(world.process_group)
    node, place = divmod(world.rank, ranks_per_node)
    inside = ranks[node * ranks_per_node : (node + 1) * ranks_per_node]
    between = ranks[place::ranks_per_node]
    return _group(local_group, inside, "local_node_group"), _group(master_group, between, "master_group")


def _group(given: Any, ranks: list[int], name: str) -> comm.Group:
    if given is None or given is dist.GroupMember.NON_GROUP_MEMBER:
        given = dist.new_group(ranks, use_local_synchronization=True)
    elif dist.get_process_group_ranks(given) != ranks:
        raise ValueError(f"{name} has ranks {dist.get_process_group_ranks(given)}, but must have {ranks}")
    return comm.Group(given)
