"""Parameters of odd kinds: empty, integer, constant, fewer than ranks, channels_last, sparse, of two dtypes."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of
from support.ranks import device

OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}


def train(model, optimizer, rank, steps=5):
    for step in range(steps):
        loss_of(model(inputs(rank, step))).backward()
        optimizer.step()
        optimizer.zero_grad()


def check(make, rank, **layout):
    """Trains as DDP does, bit for bit; returns the model and the wrapper."""
    plain = make().to(device())
    train(DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), **OPTIONS), rank)
    model = make().to(device())
    optimizer = OSS(model.parameters(), torch.optim.AdamW, **layout, **OPTIONS)
    parallel = ShardedDataParallel(model, optimizer)
    train(parallel, optimizer, rank)
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert ours.equal(theirs) and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype, name
    return model, parallel


class Odd(nn.Module):
    """A layer next to parameters that are empty, integer, or never trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.empty = nn.Parameter(torch.empty(0, 7))
        self.layer = nn.Linear(10, 3)
        self.shift = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)
        self.constant = nn.Parameter(torch.randn(3), requires_grad=False)
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.layer(x) * self.scalar + self.shift + self.constant + self.empty.sum()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3)).to(
            memory_format=torch.channels_last
        )

    def forward(self, x):
        return self.layers(x.reshape(6, 2, 5, 1).expand(6, 2, 5, 5).contiguous(memory_format=torch.channels_last))


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.wide = nn.Linear(10, 33)
        self.narrow = nn.Linear(33, 9, dtype=torch.bfloat16)
        self.last = nn.Linear(9, 5)

    def forward(self, x):
        return self.last(self.narrow(self.wide(x).bfloat16()).float())


def _kinds(rank, world_size):
    for layout in ({}, {"bucket_bytes": 0}, {"partition": "tensor", "bucket_bytes": 300}):
        model, _ = check(Odd, rank, **layout)
        assert model.shift.tolist() == [1, 2, 3]
        assert model.empty.shape == (0, 7)
        assert model.constant.cpu().equal(Odd().constant)
        model, _ = check(Images, rank, **layout)
        for layer in (model.layers[0], model.layers[2]):
            assert layer.weight.is_contiguous(memory_format=torch.channels_last)
            assert not layer.weight.is_contiguous()
        check(TwoDtypes, rank, **layout)

    # sparse gradients are refused by the name that the module has for the parameter
    for sharded in (True, False):
        model = nn.Sequential(nn.Embedding(4, 3, sparse=True), nn.Linear(3, 2)).to(device())
        if sharded:
            optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.1)
        parallel = ShardedDataParallel(model)
        with pytest.raises(TypeError, match=r"'0\.weight' is Sparse"):
            loss_of(parallel(torch.tensor([1, 2], device=device()))).backward()
        if sharded:
            assert optimizer.partition == "even"
    return True


@pytest.mark.costly
def test_odd_kinds_of_parameters(run_ranks):
    assert all(run_ranks(2, _kinds))


def _more_ranks_than_elements(rank, world_size):
    def data(rank, step):
        return inputs(rank, step)[:, :1]

    for partition in ("even", "tensor"):
        torch.manual_seed(7)
        model, plain = nn.Linear(1, 1).to(device()), nn.Linear(1, 1).to(device())
        plain.load_state_dict(model.state_dict())
        optimizer = OSS(model.parameters(), torch.optim.AdamW, partition=partition, **OPTIONS)
        plain_optimizer = torch.optim.AdamW(plain.parameters(), **OPTIONS)
        parallel = ShardedDataParallel(model, optimizer)
        for step in range(5):
            loss_of(parallel(data(rank, step))).backward()
            norm = optimizer.clip_grad_norm(0.1)
            (sum(loss_of(plain(data(r, step))) for r in range(world_size)) / world_size).backward()
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
            for each in (optimizer, plain_optimizer):
                each.step()
                each.zero_grad()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
        optimizer.consolidate_state_dict(-1)
        state = optimizer.state_dict()["state"]
        torch.testing.assert_close(state, plain_optimizer.state_dict()["state"], check_device=False)
    return True


def test_more_ranks_than_elements(run_ranks):
    assert all(run_ranks(4, _more_ranks_than_elements))
