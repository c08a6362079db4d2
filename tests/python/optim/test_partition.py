"""Optimizers that need whole tensors: Adafactor, Muon, and any other with partition="tensor", against DDP."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import exact, inputs, loss_of, mlp, values
from support.ranks import device

ADAFACTOR = (torch.optim.Adafactor, {"lr": 1e-2, "weight_decay": 0.1})
ADAMW = (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1})
MUON = (torch.optim.Muon, {"lr": 1e-2, "weight_decay": 0.1})


def train(model, optimizers, rank, steps):
    for step in steps:
        loss_of(model(inputs(rank, step))).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def check(model, plain, optim, what):
    for ours, theirs in zip(values(model), values(plain), strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda m: f"{optim.__name__}, {what}: {m}", **exact(optim))


def _whole_tensors(rank, world_size):
    for (optim, options), layout in ((ADAFACTOR, {}), (ADAMW, {"partition": "tensor"})):
        for bucket_bytes in (0, 600, 1 << 20):
            plain = mlp()
            plain_optimizer = optim(plain.parameters(), **options)
            train(DistributedDataParallel(plain), [plain_optimizer], rank, range(4))
            model = mlp()
            optimizer = OSS(model.parameters(), optim, bucket_bytes=bucket_bytes, **layout, **options)
            assert optimizer.partition == "tensor"
            parallel = ShardedDataParallel(model, optimizer)
            train(parallel, [optimizer], rank, range(4))
            check(model, plain, optim, "sharded")

            # every tensor has one owner, which holds the state of all of it
            owners = optimizer.partition_parameters()
            owned = [tuple(p.shape) for groups in owners for group in groups for p in group["params"] if p.numel()]
            assert sorted(owned) == sorted(tuple(p.shape) for p in model.parameters())

            # the state goes to a plain optimizer and back, and training goes on as if nothing had been
            optimizer.consolidate_state_dict(-1)
            state = copy.deepcopy(optimizer.state_dict())
            other = mlp()
            other.load_state_dict(plain.state_dict())
            other_optimizer = optim(other.parameters(), **options)
            other_optimizer.load_state_dict(state)
            back = mlp(seed=1)
            back.load_state_dict(plain.state_dict())
            back_optimizer = OSS(back.parameters(), optim, bucket_bytes=bucket_bytes, **layout, **options)
            back_optimizer.load_state_dict(other_optimizer.state_dict())
            train(ShardedDataParallel(back, back_optimizer), [back_optimizer], rank, range(4, 7))
            train(DistributedDataParallel(other), [other_optimizer], rank, range(4, 7))
            train(DistributedDataParallel(plain), [plain_optimizer], rank, range(4, 7))
            check(other, plain, optim, "plain, resumed")
            check(back, plain, optim, "sharded, resumed")


def _states(rank, world_size):
    def thin():
        """The row statistics of its first weight have the shape of that weight."""
        torch.manual_seed(12)
        return nn.Sequential(nn.Linear(10, 1), nn.Linear(1, 8), nn.Linear(8, 4))

    for make in (mlp, thin):
        for bucket_bytes in (0, 1 << 20):
            plain, model = make().to(device()), make().to(device())
            plain_optimizer = ADAFACTOR[0](plain.parameters(), **ADAFACTOR[1])
            optimizer = OSS(model.parameters(), ADAFACTOR[0], bucket_bytes=bucket_bytes, **ADAFACTOR[1])
            train(DistributedDataParallel(plain), [plain_optimizer], rank, range(3))
            train(ShardedDataParallel(model, optimizer), [optimizer], rank, range(3))
            optimizer.consolidate_state_dict(-1)
            ours, theirs = optimizer.state_dict()["state"], plain_optimizer.state_dict()["state"]
            torch.testing.assert_close(ours, theirs, check_device=False, **exact(ADAFACTOR[0]))
    return True


def test_consolidated_states_are_those_of_the_plain_optimizer(run_ranks):
    assert all(run_ranks(2, _states))


def _two_optimizers(rank, world_size):
    def made(model, wrap):
        weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        return [wrap(weights, *MUON), wrap(biases, *ADAMW)]

    plain, model = mlp(), mlp()
    plain_optimizers = made(plain, lambda parameters, optim, options: optim(parameters, **options))
    optimizers = made(model, lambda parameters, optim, options: OSS(parameters, optim, bucket_bytes=900, **options))
    assert [optimizer.partition for optimizer in optimizers] == ["tensor", "even"]
    train(DistributedDataParallel(plain), plain_optimizers, rank, range(5))
    train(ShardedDataParallel(model, optimizers), optimizers, rank, range(5))
    for ours, theirs in zip(values(model), values(plain), strict=True):
        torch.testing.assert_close(ours, theirs)

    # what is refused
    with pytest.raises(ValueError, match="'rows'"):
        OSS(mlp().parameters(), *ADAMW[:1], partition="rows", lr=0.1)
    for optim in (torch.optim.LBFGS, torch.optim.SparseAdam):
        for partition in ("auto", "tensor", "even"):
            with pytest.raises(NotImplementedError, match=optim.__name__):
                OSS(mlp().parameters(), optim, partition=partition)


def _all(rank, world_size):
    _whole_tensors(rank, world_size)
    _two_optimizers(rank, world_size)
    return True


@pytest.mark.costly
def test_whole_tensors_train_as_ddp_and_their_state_travels(run_ranks):
    assert all(run_ranks(2, _all))
