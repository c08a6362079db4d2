"""Whoever promises that every backward uses the same parameters gets the same training, with fewer messages."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard import comm
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of
from support.parallel import MODES, assert_same, train
from support.ranks import device


class Branches(nn.Module):
    """A branch that is used by rank 0 alone, and one by nobody."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.uses_second = rank == 0
        self.first, self.second, self.third = (nn.Linear(10, 5) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + (self.second(x) if self.uses_second else 0)


def wrapped(rank: int, mode: str, static_graph: bool):
    module = Branches(rank).to(device())
    if MODES[mode] is None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = OSS(module.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, bucket_bytes=200, **MODES[mode])
    kind = "optimizer" if mode == "optimizer" else "gradients"
    return ShardedDataParallel(module, mode=kind, static_graph=static_graph), optimizer


def collectives_of_a_step(parallel, optimizer, rank: int) -> int:
    group = comm.Group()
    before = group.collectives
    train(parallel, optimizer, rank, [3])
    return group.collectives - before


def trains_as_ddp(rank: int) -> None:
    module = Branches(rank).to(device())
    theirs = DistributedDataParallel(module, find_unused_parameters=True)
    train(theirs, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), rank, range(4))
    for mode in MODES:
        counts = {}
        for static_graph in (False, True):
            ours = wrapped(rank, mode, static_graph)
            train(*ours, rank, range(3))
            counts[static_graph] = collectives_of_a_step(*ours, rank)
            assert_same(ours[0], theirs, (mode, static_graph))
        assert counts[True] < counts[False], (mode, counts)


def is_held_to_its_promise(rank: int) -> None:
    parallel, optimizer = wrapped(rank, "gradients", static_graph=True)
    train(parallel, optimizer, rank, range(2))
    parallel.module.uses_second = not parallel.module.uses_second
    optimizer.zero_grad()
    had, has = ("a", "none") if rank == 0 else ("no", "one")
    with pytest.raises(
        RuntimeError, match=rf"'second\.(weight|bias)' had {had} gradient in the first one and has {has}"
    ):
        loss_of(parallel(inputs(rank, 2))).backward()


def refusals(rank: int) -> None:
    with pytest.raises(ValueError, match="rank 0 has no static_graph, rank 1 has a static_graph"):
        ShardedDataParallel(Branches(rank).to(device()), static_graph=rank == 1)
    parallel, _ = wrapped(rank, "replicated", static_graph=True)
    with pytest.raises(RuntimeError, match="static_graph cannot be used within join"), parallel.join():
        pass


def _static_graphs(rank, world_size):
    trains_as_ddp(rank)
    is_held_to_its_promise(rank)
    refusals(rank)
    return True


def test_static_graphs(run_ranks):
    assert all(run_ranks(2, _static_graphs))
