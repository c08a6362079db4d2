"""First forwards: one rank alone evaluates, ranks call other modules, the module is compiled."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.models import inputs, loss_of, mlp
from support.parallel import MODES, assert_same, ddp, limited, sharded, train
from support.ranks import device

pytestmark = pytest.mark.costly

RELEASED_BETWEEN_STEPS = ("release_parameters+overlap_gather", "all")  # there evaluation is collective, as documented


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 5)).to(device())


MODELS = {"plain": mlp, "BatchNorm": with_batch_norm}


def evaluate_alone(parallel, rank):
    """A sanity check before training, by the rank that writes the log; the others wait."""
    if rank == 0:
        parallel.eval()
        with torch.no_grad():
            parallel(inputs(0, 50))
        parallel.train()
    dist.barrier()


def _alone(rank, world_size, mode, kind):
    """With buffers, DDP itself would wait here: it broadcasts them before every forward."""
    plain, ours = MODELS[kind](), MODELS[kind]()
    parallel, optimizer = ddp(plain, lr=0.1)
    train(parallel, optimizer, rank)
    parallel.eval()(inputs(rank, 0))  # which gives all ranks the first one's buffers, as ours has done by then
    with limited(30):
        wrapper, optimizer = sharded(ours, mode, lr=0.1)
        evaluate_alone(wrapper, rank)
        train(wrapper, optimizer, rank, steps=[0])
        if mode not in RELEASED_BETWEEN_STEPS:
            evaluate_alone(wrapper, rank)
        train(wrapper, optimizer, rank, steps=[1, 2])
        assert_same(wrapper, plain, mode)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_one_rank_evaluates_alone(run_ranks, mode, kind):
    run_ranks(2, _alone, mode, kind)


class Experts(nn.Module):
    """Each rank's inputs go to other experts, and which these are changes with the step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first = nn.Linear(10, 12)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 12)) for _ in range(4))
        self.last = nn.Linear(12, 3)

    def forward(self, x, chosen):
        x = self.first(x)
        for number in chosen:
            x = x + self.experts[number](x)
        return self.last(x)


CHOICES = {
    "other ones": lambda rank, step: [(rank + step) % 4],
    "another number": lambda rank, step: [0, 1, 2][: 1 + (rank + step) % 3],
    "another order": lambda rank, step: [0, 1, 2, 3] if rank == 0 else [3, 1, 0, 2],
    "none at first": lambda rank, step: [] if step == 0 and rank == 1 else [step % 4, 3 - rank],
}


def train_experts(parallel, optimizer, rank, choice):
    for step in range(4):
        optimizer.zero_grad()
        loss_of(parallel(inputs(rank, step), CHOICES[choice](rank, step))).backward()
        optimizer.step()


def _experts(rank, world_size, mode, choice):
    plain, ours = Experts().to(device()), Experts().to(device())
    parallel = DistributedDataParallel(plain, find_unused_parameters=True)
    train_experts(parallel, torch.optim.SGD(plain.parameters(), lr=0.1), rank, choice)
    with limited(30):
        wrapper, optimizer = sharded(ours, mode, lr=0.1)
        train_experts(wrapper, optimizer, rank, choice)
        assert_same(wrapper, plain, f"{mode}, {choice}")


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("optimizer", "step_in_backward")])
def test_ranks_call_different_modules(run_ranks, mode, choice):
    run_ranks(2, _experts, mode, choice)


def _compiled(rank, world_size, mode):
    plain, ours = mlp(), mlp()
    train(*ddp(plain, lr=0.1), rank)
    wrapper, optimizer = sharded(torch.compile(ours, backend="eager"), mode, lr=0.1)
    train(wrapper, optimizer, rank)
    wrapper.state_dict()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_module_is_wrapped(run_ranks, mode):
    run_ranks(2, _compiled, mode)
