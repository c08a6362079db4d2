"""OSS in less usual places: filtered clipping, plain tensors, torch.compile, other orders of layers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}


def train(model, optimizer, rank, steps=5, schedule=None):
    for step in range(steps):
        loss_of(model(inputs(rank, step))).backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()


def check(model, plain, what):
    for ours, theirs in zip(values(model), values(plain), strict=True):
        assert ours.equal(theirs), (what, (ours - theirs).abs().max())


def plain_gradients(plain, step, ranks):
    (sum(loss_of(plain(inputs(rank, step))) for rank in ranks) / len(ranks)).backward()


class Backwards(nn.Module):
    """Its layers run in the reverse of the order in which they are registered."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(10)
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(6))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


def _filtered_clipping(rank, world_size):
    def weights(parameters):
        return [parameter for parameter in parameters if parameter.dim() == 2]

    for mode in ("gradients", "optimizer"):
        model, plain = mlp(), mlp()
        optimizer = OSS(model.parameters(), torch.optim.SGD, bucket_bytes=300, lr=1.0)
        parallel = ShardedDataParallel(model, optimizer, mode=mode)
        plain_optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
        for step in range(3):
            loss_of(parallel(inputs(rank, step))).backward()
            plain_gradients(plain, step, range(world_size))
            for selection in (weights, lambda parameters: parameters[-1:]):
                norm = optimizer.clip_grad_norm(1e-3, filter_params_fn=selection)
                expected = nn.utils.clip_grad_norm_(selection(list(plain.parameters())), 1e-3)
                torch.testing.assert_close(norm, expected)
            for each in (optimizer, plain_optimizer):
                each.step()
                each.zero_grad()
            for ours, theirs in zip(values(model), values(plain), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def _plain_tensors(rank, world_size):
    generator = torch.Generator().manual_seed(11)
    start = [torch.randn(shape, generator=generator).to(device()) for shape in ((10, 7), (7,))]
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    optimizer = OSS(ours, torch.optim.AdamW, **OPTIONS)
    plain_optimizer = torch.optim.AdamW(theirs, **OPTIONS)
    assert not any(isinstance(tensor, nn.Parameter) for tensor in ours)
    for step in range(4):
        for tensors, each in ((ours, optimizer), (theirs, plain_optimizer)):
            loss_of(inputs(0, step) @ tensors[0] + tensors[1]).backward()  # the same on all ranks
            each.step()
            each.zero_grad()
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def _compiled(rank, world_size):
    plain = mlp()
    train(DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), **OPTIONS), rank)
    model = mlp()
    optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, **OPTIONS)
    train(ShardedDataParallel(torch.compile(model, backend="aot_eager"), optimizer), optimizer, rank)
    for ours, theirs in zip(values(model), values(plain), strict=True):
        torch.testing.assert_close(ours, theirs)


def _other_order(rank, world_size):
    plain = Backwards().to(device())
    plain_optimizer = torch.optim.AdamW(plain.parameters(), **OPTIONS)
    train(DistributedDataParallel(plain), plain_optimizer, rank, steps=3)
    half_way = copy.deepcopy((plain.state_dict(), plain_optimizer.state_dict()))
    train(DistributedDataParallel(plain), plain_optimizer, rank, steps=3)
    for is_resumed in (False, True):
        model = Backwards().to(device())
        optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, **OPTIONS)
        parallel = ShardedDataParallel(model, optimizer)
        if is_resumed:
            parallel.load_state_dict(half_way[0])
            optimizer.load_state_dict(half_way[1])
        else:
            train(parallel, optimizer, rank, steps=3)
        train(parallel, optimizer, rank, steps=3)
        check(model, plain, f"{is_resumed=}")
        optimizer.consolidate_state_dict(-1)
        ours, theirs = optimizer.state_dict()["state"], plain_optimizer.state_dict()["state"]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, check_device=False)


def _under_ddp(rank, world_size):
    plain, model = mlp(), mlp()
    plain_optimizer = torch.optim.AdamW(plain.parameters(), **OPTIONS)
    optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, **OPTIONS)
    for inner, each in ((plain, plain_optimizer), (model, optimizer)):
        schedule = torch.optim.lr_scheduler.OneCycleLR(each, max_lr=0.05, total_steps=8)  # also cycles the betas
        train(DistributedDataParallel(inner), each, rank, steps=8, schedule=schedule)
    check(model, plain, "under DDP")


def _details(rank, world_size):
    for case in (_filtered_clipping, _plain_tensors, _compiled, _other_order, _under_ddp):
        case(rank, world_size)
    return True


@pytest.mark.costly
def test_details(run_ranks):
    assert all(run_ranks(2, _details))
