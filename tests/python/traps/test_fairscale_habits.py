"""What scripts written for FairScale do, and its own tests check."""

import pytest
import torch
from torch import nn

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp
from support.parallel import SHARDED, assert_same, ddp, sharded, train
from support.ranks import device

pytestmark = pytest.mark.costly


class SGDWithKeyword(torch.optim.SGD):
    def step(self, closure=None, kwarg=None):
        super().step()
        kwarg.append(5)


def _step_with_zero(rank, world_size):
    """``step(0, ...)``: no closure, by position."""
    x = torch.tensor([1.0], requires_grad=True, device=device())
    optimizer = OSS([x], SGDWithKeyword, lr=0.1)
    x.backward()
    seen = []
    assert optimizer.step(0, kwarg=seen) is None
    # the slice of the other rank is empty
    assert set(seen) <= {5}
    torch.testing.assert_close(x.detach(), torch.tensor([0.9], device=device()))


def test_a_closure_of_zero_is_none(run_ranks):
    run_ranks(2, _step_with_zero)


def _moved(rank, world_size, move, is_wrapped_first):
    """The OSS is made, and then the model is moved; wrapped before or after that."""
    plain, ours = move(mlp().cpu()), mlp().cpu()
    optimizer = OSS(ours.parameters(), torch.optim.AdamW, lr=1e-2)
    if is_wrapped_first:
        wrapper = ShardedDataParallel(ours, optimizer)
        move(ours)
    else:
        wrapper = ShardedDataParallel(move(ours), optimizer)
    parallel, plain_optimizer = ddp(plain, torch.optim.AdamW, lr=1e-2)
    for model, each in ((parallel, plain_optimizer), (wrapper, optimizer)):
        for step in range(3):
            each.zero_grad()
            loss_of(model(inputs(rank, step).to(plain[0].weight))).backward()
            each.step()
    assert_same(wrapper, plain)
    assert ours[0].weight.device == plain[0].weight.device and ours[0].weight.dtype == plain[0].weight.dtype
    optimizer.consolidate_state_dict(-1)
    expected = plain_optimizer.state_dict()["state"]
    torch.testing.assert_close(optimizer.state_dict()["state"], expected, rtol=0, atol=0, check_device=False)


def to_double(model):
    return model.to(torch.float64)


def to_device(model):
    return model.to(device())


@pytest.mark.parametrize("is_wrapped_first", [False, True])
def test_a_model_changes_its_dtype_after_the_oss_was_made(run_ranks, is_wrapped_first):
    run_ranks(2, _moved, to_double, is_wrapped_first)


@pytest.mark.nccl_only
def test_a_model_is_moved_to_the_gpu_after_the_oss_was_made(run_ranks):
    run_ranks(2, _moved, to_device, False)


def _train_eval_change(rank, world_size, mode):
    """Gradients are there after each backward in training, on every rank, and gone after ``zero_grad``."""
    wrapper, optimizer = sharded(mlp(), mode, lr=0.1)
    plain, _ = ddp(mlp(), lr=0.1)

    def backward(model):
        model.train()
        loss_of(model(inputs(rank, 0))).backward()
        return torch.stack([torch.norm(parameter.grad) for parameter in model.parameters()])

    expected = backward(plain)
    torch.testing.assert_close(backward(wrapper), expected)
    wrapper.zero_grad()
    wrapper.eval()
    wrapper(inputs(rank, 1))
    for parameter in wrapper.parameters():
        assert parameter.grad is None or torch.norm(parameter.grad) == 0
    torch.testing.assert_close(backward(wrapper), expected)
    optimizer.step()


@pytest.mark.parametrize("mode", ["replicated", "optimizer", "gradients", "overlap_gather", "release_parameters"])
def test_gradients_are_there_after_backward_when_training_and_evaluation_change(run_ranks, mode):
    run_ranks(2, _train_eval_change, mode)


class Talking(nn.Module):
    """With attributes and methods of its own."""

    vocabulary = 7

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 3)
        self.config = {"heads": 2}
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.layer(x)

    def generate(self, x):
        return self.forward(x).argmax(-1)

    @property
    def width(self):
        return self.layer.out_features


def _attributes(rank, world_size):
    module = Talking().to(device())
    optimizer = OSS(module.parameters(), torch.optim.SGD, lr=0.1)
    wrapper = ShardedDataParallel(module, optimizer)
    assert wrapper.config is module.config
    assert wrapper.layer is module.layer and wrapper.seen is module.seen
    assert wrapper.width == 3 and wrapper.vocabulary == 7
    assert wrapper.generate(inputs(rank, 0)).shape == (6,)
    assert not hasattr(wrapper, "nothing_of_that_name")
    # those of DDP that libraries look at
    assert wrapper.module is module
    assert wrapper.is_multi_device_module is False
    assert wrapper.device_type == device().type
    assert wrapper.device == device()


def test_attributes_of_the_module_and_of_ddp(run_ranks):
    run_ranks(2, _attributes)


def _items(rank, world_size):
    """FairScale's wrapper of a Sequential can be indexed and measured through ``module`` only, as DDP's."""
    wrapper, _ = sharded(mlp(), "gradients", lr=0.1)
    with pytest.raises(TypeError):
        wrapper[0]
    with pytest.raises(TypeError):
        len(wrapper)
    assert isinstance(wrapper.module[0], nn.Linear)


def test_a_wrapper_is_no_container(run_ranks):
    run_ranks(2, _items)


def losses(wrapper, optimizer, rank, steps):
    found = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(wrapper(inputs(rank, step)))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def _resumed(rank, world_size, mode, optim, options):
    """The run goes on with the losses that it would have had."""

    def made(seed):
        module = mlp(seed)
        optimizer = OSS(module.parameters(), optim, bucket_bytes=2000, **MODES_OF[mode], **options)
        return ShardedDataParallel(module, optimizer), optimizer

    wrapper, optimizer = made(0)
    losses(wrapper, optimizer, rank, range(5))
    state = {name: value.clone() for name, value in wrapper.state_dict().items()}
    optimizer.consolidate_state_dict(-1)
    optimizer_state = optimizer.state_dict()
    expected = losses(wrapper, optimizer, rank, range(5, 12))

    again, optimizer = made(1)
    again.load_state_dict(state)
    optimizer.load_state_dict(optimizer_state)
    torch.testing.assert_close(losses(again, optimizer, rank, range(5, 12)), expected, rtol=0, atol=0)
    assert_same(again, wrapper)


MODES_OF = {
    "broadcast_fp16": {"broadcast_fp16": True},
    "broadcast_fp16+overlap_gather": {"broadcast_fp16": True, "overlap_gather": True},
    "gather_dtype": {"gather_dtype": torch.bfloat16},
    "plain": {},
}


@pytest.mark.parametrize("mode", MODES_OF)
def test_a_run_resumed_from_state_dicts_has_the_same_losses(run_ranks, mode):
    run_ranks(2, _resumed, mode, torch.optim.AdamW, {"lr": 1e-2})


def _loaded_back(rank, world_size):
    """As FairScale's test does it: both state dicts are loaded back into the same objects, and a step is repeated."""
    module = mlp()
    optimizer = OSS(module.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, broadcast_fp16=True)
    wrapper = ShardedDataParallel(module, optimizer)
    losses(wrapper, optimizer, rank, range(3))
    state = {name: value.clone() for name, value in wrapper.state_dict().items()}
    optimizer.consolidate_state_dict(-1)
    optimizer_state = optimizer.state_dict()
    expected = losses(wrapper, optimizer, rank, range(3, 9))
    wrapper.load_state_dict(state)
    optimizer.load_state_dict(optimizer_state)
    torch.testing.assert_close(losses(wrapper, optimizer, rank, range(3, 9)), expected, rtol=0, atol=0)


def test_state_loaded_back_repeats_the_losses(run_ranks):
    run_ranks(2, _loaded_back)


def _closures(rank, world_size, mode):
    """A closure that computes the loss, as with any optimizer of torch's."""
    plain, ours = mlp(), mlp()
    results = []
    for model, (parallel, optimizer) in ((plain, ddp(plain, lr=0.1)), (ours, sharded(ours, mode, lr=0.1))):
        train(parallel, optimizer, rank, steps=[0])

        def closure(parallel=parallel, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(parallel(inputs(rank, 1)))
            loss.backward()
            return loss

        results.append(optimizer.step(closure).detach())
        results.append(optimizer.step(closure=closure).detach())
        parallel.state_dict()
        assert model is parallel.module
    torch.testing.assert_close(results[2:], results[:2], rtol=0, atol=0)
    assert_same(ours, plain, mode)


@pytest.mark.parametrize("mode", SHARDED)
def test_closures(run_ranks, mode):
    run_ranks(2, _closures, mode)
