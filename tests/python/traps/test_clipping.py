"""Clipping by value, as torch does it."""

import pytest
from torch import nn

from support.models import mlp
from support.parallel import assert_same, ddp, sharded, train

pytestmark = pytest.mark.costly


def _methods(rank, world_size):
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.5)
    train(parallel, optimizer, rank, clip=lambda: nn.utils.clip_grad_value_(plain.parameters(), 0.002))
    wrapper, optimizer = sharded(ours, "gradients", lr=0.5)
    train(wrapper, optimizer, rank, clip=lambda: optimizer.clip_grad_value(0.002))
    assert_same(ours, plain)


def test_oss_clips_by_value(run_ranks):
    run_ranks(2, _methods)
