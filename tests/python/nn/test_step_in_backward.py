"""step_in_backward: buckets are stepped, dropped and gathered while backward runs. Against DDP, bit for bit."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale
from fairshard.optim.grad_scaler import ShardedGradScaler
from support.models import exact, inputs, loss_of, mlp, values
from support.ranks import device

STEPS = 6
OPTIMIZERS = (
    (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.Adafactor, {"lr": 1e-2}),  # whole tensors
)


def made(optim=torch.optim.AdamW, model=None, bucket_bytes=600, **options):
    model = (model or mlp()).to(device())
    optimizer = OSS(model.parameters(), optim, bucket_bytes=bucket_bytes, step_in_backward=True, **options)
    return model, optimizer, ShardedDataParallel(model, optimizer)


def train(model, optimizer, rank, scheduler=None):
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model(inputs(rank, step))).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def check(ours, theirs, what, **tolerances):
    for a, b in zip(values(ours), values(theirs), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m: f"{what}: {m}", **tolerances)


def _as_ddp(rank, world_size):
    for optim, options in OPTIMIZERS:
        tolerances = exact(optim) if world_size == 2 else {}
        plain = mlp()
        plain_optimizer = optim(plain.parameters(), **options)
        train(
            DistributedDataParallel(plain), plain_optimizer, rank, torch.optim.lr_scheduler.StepLR(plain_optimizer, 2)
        )
        for extra in ({}, {"overlap_gather": True}, {"bucket_bytes": 0}, {"bucket_bytes": 1 << 30}):
            model, optimizer, parallel = made(optim, **options, **extra)
            train(parallel, optimizer, rank, torch.optim.lr_scheduler.StepLR(optimizer, 2))
            optimizer.wait_for_parameters()
            check(model, plain, f"{optim.__name__} {options} {extra}", **tolerances)
            # and its state is the plain optimizer's
            optimizer.consolidate_state_dict(-1)
            for number, state in plain_optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    ours = optimizer.state_dict()["state"][number][key]
                    torch.testing.assert_close(
                        ours, value, msg=lambda m, k=key: f"{k}: {m}", check_device=False, **tolerances
                    )


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.costly)])
def test_trains_as_ddp(run_ranks, world_size):
    run_ranks(world_size, _as_ddp)


class Blocks(nn.Module):
    def __init__(self, is_checkpointed):
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(10, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        x = self.first(x)
        for block in [*self.blocks, self.blocks[0]]:  # one is used twice
            x = torch.tanh(checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x))
        return x


def _checkpointed_and_shared(rank, world_size):
    plain = Blocks(is_checkpointed=False).to(device())
    train(DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), lr=1e-2), rank)
    for is_checkpointed in (False, True):
        model, optimizer, parallel = made(model=Blocks(is_checkpointed), lr=1e-2)
        train(parallel, optimizer, rank)
        check(model, plain, f"{is_checkpointed=}", rtol=0, atol=0)


def test_layers_that_run_again_or_twice(run_ranks):
    run_ranks(2, _checkpointed_and_shared)


def _refusals(rank, world_size):
    model, optimizer, parallel = made(lr=1e-2)

    def backward(loss=lambda loss: loss):
        loss(loss_of(parallel(inputs(rank, 0)))).backward()

    backward()
    with pytest.raises(RuntimeError, match="cannot be clipped with step_in_backward"):
        optimizer.clip_grad_norm(1.0)
    optimizer.step()
    backward()
    with pytest.raises(RuntimeError, match="has stepped already: call the optimizer's step"):
        backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="step_in_backward cannot be used with a grad scaler"):
        backward(ShardedGradScaler().scale)
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="within join"), parallel.join():
        backward()
    with pytest.raises(ValueError, match="needs sharded gradients"):
        ShardedDataParallel(model, optimizer, mode="optimizer")(inputs(rank, 0))
    with pytest.raises(TypeError, match="cannot hand found_inf"):
        optimizer.step(found_inf=torch.zeros(()))
    model, optimizer, parallel = made(torch.optim.SGD, lr=1e-2)
    scaled = AdaScale(optimizer)
    with pytest.raises(RuntimeError, match=r"AdaScale.*step_in_backward"):
        backward()
    del scaled


def test_what_needs_all_gradients_is_refused(run_ranks):
    run_ranks(2, _refusals)


def _an_optimizer_that_is_gone(rank, world_size):
    model, optimizer, parallel = made(lr=1e-2)
    train(parallel, optimizer, rank)
    before, gone = copy.deepcopy(model.state_dict()), weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None, "the callback keeps the optimizer alive"
    loss_of(parallel(inputs(rank, 0))).backward()
    parallel.state_dict()
    for name, value in model.state_dict().items():
        assert value.equal(before[name])


def test_lives_no_longer_than_its_user_wants(run_ranks):
    run_ranks(2, _an_optimizer_that_is_gone)


def _under_ddp(rank, world_size):
    plain, model = mlp(), mlp()
    train(DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), lr=1e-2), rank)
    optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, step_in_backward=True, lr=1e-2)
    train(DistributedDataParallel(model), optimizer, rank)
    check(model, plain, "under DDP", rtol=0, atol=0)


def test_under_ddp_step_takes_the_steps(run_ranks):
    run_ranks(2, _under_ddp)
