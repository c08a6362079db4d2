"""What a new user meets first: names after the import, and validation losses that are those of DDP."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from support.models import inputs, loss_of
from support.parallel import MODES, ddp, sharded, train, whole
from support.ranks import device

pytestmark = pytest.mark.costly

NAMES = (
    "fairshard.optim.OSS",
    "fairshard.optim.ShardedGradScaler",
    "fairshard.nn.ShardedDataParallel",
    "fairshard.nn.data_parallel.ShardedDataParallel",
    "fairshard.checkpoint.Checkpoint",
    "fairshard.comm.Group",
    "fairshard.experimental.nn.OffloadModel",
)


PROGRAM = """
import fairshard, functools, sys
for name in sys.argv[1:]:
    try:
        functools.reduce(getattr, name.split(".")[1:], fairshard)
    except AttributeError as error:
        print(name, error)
"""


def test_names_are_found_after_the_import():
    program = [sys.executable, "-c", PROGRAM, *NAMES]
    done = subprocess.run(program, capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout == ""


class Normed(nn.Module):
    """With statistics that each rank gathers from its own inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 5))

    def forward(self, x):
        return self.layers(x)


def losses(parallel, optimizer, rank):
    """One validation loss, of the same inputs on all ranks, after each epoch."""
    found = []
    for epoch in range(3):
        parallel.train()
        train(parallel, optimizer, rank, steps=[2 * epoch, 2 * epoch + 1])
        parallel.eval()
        with torch.no_grad():
            found.append(loss_of(parallel(inputs(0, 99))))
    return torch.stack(found)


def _validation(rank, world_size, mode):
    plain, ours = Normed().to(device()), Normed().to(device())
    theirs = losses(*ddp(plain, lr=0.1), rank)
    wrapper, optimizer = sharded(ours, mode, lr=0.1)
    found = losses(wrapper, optimizer, rank)
    torch.testing.assert_close(found, theirs, rtol=0, atol=0, msg=lambda m: f"{mode}, rank {rank}: {m}")
    return found


@pytest.mark.parametrize("mode", MODES)
def test_validation_losses_are_those_of_ddp_on_all_ranks(run_ranks, mode):
    first, second = run_ranks(2, _validation, mode)
    assert first.equal(second)


def _trained_in_evaluation_mode(rank, world_size):
    for mode in MODES:
        both = sharded(Normed().to(device()), mode, lr=0.1), ddp(Normed().to(device()), lr=0.1)
        for is_training in (False, True, False):
            for parallel, optimizer in both:
                train(parallel.train(is_training), optimizer, rank)
            ours, theirs = (whole(parallel) for parallel, _ in both)
            for name, _ in both[1][0].module.named_parameters():  # buffers: at other times, see above
                assert ours[name].equal(theirs[name]), (mode, is_training, name)


def test_a_model_in_evaluation_mode_trains_as_under_ddp(run_ranks):
    run_ranks(2, _trained_in_evaluation_mode)
