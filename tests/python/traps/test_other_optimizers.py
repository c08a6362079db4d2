"""An OSS that is gone or not used leaves no mark: what else steps the parameters trains as under DDP, or it is said."""

import pytest
import torch

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp
from support.parallel import assert_same, ddp, said, sharded, train

pytestmark = pytest.mark.costly

SGD = torch.optim.SGD


def dropped_before_wrapping(model, rank):
    optimizer = OSS(model.parameters(), SGD, lr=0.1)
    del optimizer
    return ShardedDataParallel(model)


def dropped_after_wrapping(model, rank):
    optimizer = OSS(model.parameters(), SGD, lr=0.1)
    parallel = ShardedDataParallel(model, optimizer)
    del optimizer
    return parallel


def dropped_after_a_forward(model, rank):
    parallel, optimizer = sharded(model, "gradients", lr=0.1)
    parallel(inputs(rank, 0))
    del optimizer
    return parallel


def unused(model, rank):
    optimizer = OSS(model.parameters(), SGD, lr=0.1)
    parallel = ShardedDataParallel(model, optimizer)
    parallel.kept = [optimizer]
    return parallel


def unused_with_overlap(model, rank):
    parallel, optimizer = sharded(model, "release_parameters+overlap_gather", lr=0.1)
    parallel.kept = [optimizer]
    return parallel


CASES = (dropped_before_wrapping, dropped_after_wrapping, dropped_after_a_forward, unused, unused_with_overlap)


def _plain_optimizer(rank, world_size, case):
    plain, ours = mlp(), mlp()
    train(*ddp(plain, lr=0.1, momentum=0.9), rank)

    def run():
        parallel = case(ours, rank)
        train(parallel, SGD(ours.parameters(), lr=0.1, momentum=0.9), rank)

    if said(run, "OSS") is None:
        assert_same(ours, plain, case.__name__)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_torchs_own_optimizer_trains_or_it_is_said(run_ranks, case):
    run_ranks(2, _plain_optimizer, case)


def _goes_on_with_torchs(rank, world_size, mode):
    """Trained by an OSS, and then, as in fine-tuning, by an optimizer of torch's."""
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.1)
    train(parallel, optimizer, rank)
    train(parallel, SGD(plain.parameters(), lr=0.05), rank)

    wrapper, optimizer = sharded(ours, mode, lr=0.1)
    train(wrapper, optimizer, rank)
    optimizer.wait_for_parameters()
    del optimizer
    if said(lambda: train(wrapper, SGD(ours.parameters(), lr=0.05), rank), "OSS") is None:
        assert_same(wrapper, plain, mode)


@pytest.mark.parametrize("mode", ["gradients", "optimizer", "overlap_gather", "release_parameters+overlap_gather"])
def test_training_goes_on_without_the_oss(run_ranks, mode):
    run_ranks(2, _goes_on_with_torchs, mode)


def _second_oss(rank, world_size, is_dropped):
    plain, ours = mlp(), mlp()
    parallel, optimizer = ddp(plain, lr=0.1)
    train(parallel, optimizer, rank)
    train(parallel, SGD(plain.parameters(), lr=0.05, momentum=0.9), rank)

    wrapper, first = sharded(ours, "gradients", lr=0.1)
    train(wrapper, first, rank)
    if is_dropped:
        del first

    def go_on():
        second = OSS(ours.parameters(), SGD, lr=0.05, momentum=0.9)
        train(wrapper, second, rank)

    if said(go_on, "OSS") is None:
        assert_same(wrapper, plain, f"{is_dropped=}")


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_second_oss_takes_over_or_it_is_said(run_ranks, is_dropped):
    run_ranks(2, _second_oss, is_dropped)


def _evaluates(rank, world_size, mode):
    """The OSS is gone, and the model is whole."""
    plain, ours = mlp(), mlp()
    train(*ddp(plain, lr=0.1), rank)
    wrapper, optimizer = sharded(ours, mode, lr=0.1)
    train(wrapper, optimizer, rank)
    del optimizer
    assert_same(wrapper, plain, mode)
    wrapper.eval()
    with torch.no_grad():
        torch.testing.assert_close(loss_of(wrapper(inputs(0, 9))), loss_of(plain(inputs(0, 9))), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["gradients", "step_in_backward", "release_parameters+overlap_gather", "all"])
def test_a_model_outlives_its_oss(run_ranks, mode):
    run_ranks(2, _evaluates, mode)
