"""What a new user ran into: training is that of torch, or it is refused with the reason."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from fairshard.checkpoint import Checkpoint
from fairshard.experimental.nn import OffloadModel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp
from support.parallel import MODES, assert_same, ddp, limited, said, sharded, train

pytestmark = pytest.mark.costly


def _pruned(layer):
    return prune.l1_unstructured(layer, "weight", 0.5)


def _reparametrised(rank, world_size, mode, change):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(change(nn.Linear(10, 16)), nn.Tanh(), change(nn.Linear(16, 5)))

    plain, ours = make(), make()
    train(*ddp(plain, lr=0.1), rank, steps=range(5))
    parallel, optimizer = sharded(ours, mode, lr=0.1)
    train(parallel, optimizer, rank, steps=range(5))
    assert_same(parallel, plain, (mode, change.__name__))


@pytest.mark.parametrize("change", [weight_norm, spectral_norm, _pruned], ids=lambda change: change.__name__)
@pytest.mark.parametrize("mode", ["overlap_gather", "release_parameters+overlap_gather", "all"])
def test_hooks_that_read_parameters_before_forward_see_new_ones(run_ranks, mode, change):
    run_ranks(2, _reparametrised, mode, change)


def _images(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(4, 3, 8, 8, generator=generator)


def _memory_format(rank, world_size, mode):
    """Beside one process that takes both ranks' images, as DDP mixes up gradients of other strides."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3))

    plain, ours = make(), make()
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
    parallel, optimizer = sharded(ours, mode, torch.optim.AdamW, lr=0.01)
    for step in range(6):
        if step == 3:
            plain.to(memory_format=torch.channels_last)
            parallel.to(memory_format=torch.channels_last)
        theirs.zero_grad()
        sum(loss_of(plain(_images(r, step))) for r in range(world_size)).div(world_size).backward()
        theirs.step()
        optimizer.zero_grad()
        loss_of(parallel(_images(rank, step))).backward()
        optimizer.step()
    assert_same(parallel, plain, mode, rounded=True)


@pytest.mark.parametrize("mode", MODES)
def test_states_follow_another_memory_format(run_ranks, mode):
    run_ranks(2, _memory_format, mode)


def _lazy(rank, world_size):
    make = lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(3))  # noqa: E731
    with pytest.raises(ValueError, match="lazy"):
        OSS(make().parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="lazy"):
        ShardedDataParallel(make())
    with pytest.raises(ValueError, match="lazy"):
        OffloadModel(make(), "cpu", num_slices=2)


def test_lazy_modules_are_refused(run_ranks):
    run_ranks(1, _lazy)


def _integers(rank, world_size):
    with pytest.raises(ValueError, match=r"reduce_dtype is torch\.int32"):
        ShardedDataParallel(mlp(), reduce_dtype=torch.int32)
    with pytest.raises(ValueError, match="gather_dtype is Char"):
        OSS(mlp().parameters(), torch.optim.SGD, gather_dtype=torch.int8, lr=0.1)


def test_numbers_do_not_travel_as_integers(run_ranks):
    run_ranks(1, _integers)


def _offloaded(model, optimizer, backwards):
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(inputs(0, step)))
        for left in reversed(range(backwards)):
            loss.backward(retain_graph=left > 0)
        optimizer.step()


@pytest.mark.parametrize("backwards", [1, 2])
def test_a_slice_computed_again_begins_with_the_same_buffers(backwards):
    def make():
        torch.manual_seed(0)
        norm = torch.nn.utils.parametrizations.spectral_norm
        return nn.Sequential(norm(nn.Linear(10, 16)), nn.BatchNorm1d(16), nn.Tanh(), norm(nn.Linear(16, 5)))

    plain, ours = make(), make()
    _offloaded(plain, torch.optim.SGD(plain.parameters(), lr=0.1), backwards)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    _offloaded(OffloadModel(ours, "cpu", num_slices=2, checkpoint_activation=True), optimizer, backwards)
    assert_same(ours, plain, backwards)


def _long_integers(rank, world_size, folder):
    state = {"state": 2**127 + 1, "has_uint32": 0}  # as of a numpy generator
    with Checkpoint(folder, {"numpy": dict(state)}) as checkpoint:
        checkpoint.save(1)
    loaded = {"state": 0, "has_uint32": 1}
    with Checkpoint(folder, {"numpy": loaded}) as checkpoint:
        checkpoint.load()
    assert loaded == state


def test_long_integers_keep_all_digits(run_ranks, tmp_path):
    run_ranks(1, _long_integers, str(tmp_path))


class Interrupted(Exception):
    pass


def _interrupt(gradient):
    raise Interrupted


def _after_an_error(rank, world_size, mode):
    plain, ours = mlp(), mlp()
    train(*ddp(plain, lr=0.1), rank, steps=range(5))
    parallel, optimizer = sharded(ours, mode, lr=0.1)
    train(parallel, optimizer, rank, steps=range(3))
    hook = ours[2].weight.register_hook(_interrupt)
    with pytest.raises(Interrupted):
        loss_of(parallel(inputs(rank, 70))).backward()
    hook.remove()
    train(parallel, optimizer, rank, steps=range(3, 5))  # begins with zero_grad()
    assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", ["replicated", "optimizer", "gradients", "overlap_gather", "release_parameters"])
def test_nothing_is_left_of_a_backward_that_was_interrupted(run_ranks, mode):
    run_ranks(2, _after_an_error, mode)


def _dropped_by_hand(rank, world_size, mode, drop):
    plain, ours = mlp(), mlp()
    train(*ddp(plain, lr=0.1), rank)
    parallel, optimizer = sharded(ours, mode, lr=0.1)
    for step in range(3):
        loss_of(parallel(inputs(rank, step + 50))).backward()  # a batch that is left out after all
        drop(ours)
        loss_of(parallel(inputs(rank, step))).backward()
        optimizer.step()
        drop(ours)
    assert_same(parallel, plain, mode)


def by_module(module):
    module.zero_grad()


def by_parameter(module):
    for parameter in module.parameters():
        parameter.grad = None


@pytest.mark.parametrize("drop", [by_module, by_parameter], ids=lambda drop: drop.__name__)
@pytest.mark.parametrize("mode", ["replicated", "optimizer", "gradients", "overlap_gather", "release_parameters"])
def test_gradients_dropped_without_the_wrapper_are_dropped(run_ranks, mode, drop):
    run_ranks(2, _dropped_by_hand, mode, drop)


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp()
        self.extra = None

    def forward(self, x):
        x = self.layers(x)
        return x if self.extra is None else self.extra(x)


def _grows(rank, world_size, mode):
    parallel, optimizer = sharded(Growing(), mode, lr=0.1)
    train(parallel, optimizer, rank)
    extra = nn.Linear(5, 5)
    parallel.module.extra = extra
    optimizer.add_param_group({"params": extra.parameters()})
    train(parallel, optimizer, rank)


@pytest.mark.parametrize(
    "mode", ["gradients", "overlap_gather", "release_parameters", "release_parameters+overlap_gather", "all"]
)
def test_a_model_that_releases_parameters_can_grow(run_ranks, mode):
    run_ranks(2, _grows, mode)


def _joins(rank, world_size, mode):
    parallel, optimizer = sharded(mlp(), mode, lr=0.1)
    with limited(20), pytest.raises(RuntimeError, match=r"join\(\)"), parallel.join():
        train(parallel, optimizer, rank, steps=range(4 * rank))  # rank 0 has no inputs


@pytest.mark.parametrize("mode", ["step_in_backward", "release_parameters"])
def test_join_is_refused_at_once_on_all_ranks(run_ranks, mode):
    run_ranks(2, _joins, mode)


def _steps_twice(rank, world_size, mode):
    plain, ours = mlp(), mlp()
    parallel, optimizer = sharded(ours, mode, lr=0.1)
    pairs = [(*ddp(plain, lr=0.1), True), (parallel, optimizer, False)]

    def run():
        for wrapper, each, _ in pairs:
            for step in range(3):
                each.zero_grad()
                loss_of(wrapper(inputs(rank, step))).backward()
                each.step()
                each.step()

    if said(run, "step_in_backward") is None:
        assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", ["gradients", "step_in_backward"])
def test_a_second_step_steps_or_it_is_said(run_ranks, mode):
    run_ranks(2, _steps_twice, mode)


def _torchs_scaler(rank, world_size, mode):
    plain, ours = mlp(), mlp()
    parallel, optimizer = sharded(ours, mode, lr=0.1)

    def run(wrapper, each):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            each.zero_grad()
            scaler.scale(loss_of(wrapper(inputs(rank, step)))).backward()
            scaler.step(each)
            scaler.update()

    run(*ddp(plain, lr=0.1))
    if said(lambda: run(parallel, optimizer), "ShardedGradScaler") is None:
        assert_same(parallel, plain, mode)


@pytest.mark.parametrize("mode", ["optimizer", "gradients"])
def test_torchs_own_scaler_works_or_ours_is_named(run_ranks, mode):
    run_ranks(2, _torchs_scaler, mode)


def _even_adafactor(rank, world_size):
    with pytest.raises(ValueError, match="whole"):
        OSS(mlp().parameters(), torch.optim.Adafactor, partition="even", lr=0.1)


def test_even_ranges_of_an_optimizer_of_whole_tensors_are_refused(run_ranks):
    run_ranks(1, _even_adafactor)
