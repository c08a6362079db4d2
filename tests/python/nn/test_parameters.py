"""Parameters that are frozen, unused, shared or used several times, against one plain process that sees all inputs."""

import torch
from torch import nn

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}


def check(make, rank, world_size, losses, before=lambda model, step: None, steps=6, submodules=("",), **layout):
    """Trains ``make()`` sharded and plain, both with one optimizer per submodule, and compares after every step.

    ``losses(model, rank, step)`` gives the losses of one step, each of which has its own backward.
    """
    model, plain = make().to(device()), make().to(device())
    optimizers = [OSS(model.get_submodule(m).parameters(), torch.optim.AdamW, **layout, **OPTIONS) for m in submodules]
    plain_optimizers = [torch.optim.AdamW(plain.get_submodule(m).parameters(), **OPTIONS) for m in submodules]
    parallel = ShardedDataParallel(model, optimizers)
    for step in range(steps):
        before(model, step)
        before(plain, step)
        for loss in losses(parallel, rank, step):
            loss.backward()
        for every_rank in range(world_size):
            for loss in losses(plain, every_rank, step):
                (loss / world_size).backward()
        for optimizer in (*optimizers, *plain_optimizers):
            optimizer.step()
            optimizer.zero_grad()
        for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, msg=lambda m, at=(step, name): f"{at}: {m}")
    return model, optimizers


def one_loss(model, rank, step):
    return [loss_of(model(inputs(rank, step)))]


def _freezing(rank, world_size):
    def alternate(model, step):
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number == 5 or (number + step) % 3 != 0)

    for bucket_bytes in (500, 1 << 20):
        check(mlp, rank, world_size, one_loss, alternate, bucket_bytes=bucket_bytes)

    def two_equal():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))

    def freeze_one_rank(model, step):
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(step in (0, 3) or number == step % 2)

    for partition in ("even", "tensor"):
        _, (optimizer,) = check(two_equal, rank, world_size, one_loss, freeze_one_rank, partition=partition)
        owned = {id(entry.parameter) for entry in optimizer.entries if entry.values.numel()}
        assert len(owned) == 1  # so that all that a rank owned was frozen in some step


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
        self.b = nn.Linear(10, 10)

    def forward(self, x, used):
        # Parameters that are not used must have no gradient, so nothing is multiplied by zero.
        y = x * 0.5
        for name in used:
            y = y + self.get_submodule(name)(x)
        return y


def _unused(rank, world_size):
    patterns = [
        (("a.0", "a.1", "b"), ("a.0", "a.1", "b")),
        (("b",), ("a.0", "a.1")),  # no a on rank 0, no b on rank 1
        (("a.0", "b"), ("a.1", "b")),
        (("b",), ("b",)),  # nobody uses a: AdamW must not decay it
        (("a.1",), ("a.0", "b")),
    ]

    def losses(model, rank, step):
        return [loss_of(model(inputs(rank, step), patterns[step % len(patterns)][rank]))]

    for bucket_bytes in (0, 500, 1 << 20):
        check(Branches, rank, world_size, losses, steps=7, bucket_bytes=bucket_bytes)
        check(Branches, rank, world_size, losses, steps=7, submodules=("a", "b"), bucket_bytes=bucket_bytes)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Linear(10, 10)
        self.again = nn.Linear(10, 10)
        self.tied = nn.Linear(10, 10)
        self.tied.weight = self.first.weight

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.again(x))
        return self.tied(torch.tanh(self.first(x)))


def _used_often(rank, world_size):
    def forwards_then_backward(model, rank, step):
        return [sum(loss_of(model(inputs(rank, 3 * step + i))) * (i + 1) for i in range(3))]

    def backwards_after_forwards(model, rank, step):
        return [loss_of(model(inputs(rank, 3 * step + i))) for i in range(3)]

    def last_forward_first(model, rank, step):
        return backwards_after_forwards(model, rank, step)[::-1]

    for losses in (one_loss, forwards_then_backward, backwards_after_forwards, last_forward_first):
        model, _ = check(Shared, rank, world_size, losses, bucket_bytes=300)
        assert model.tied.weight is model.first.weight
        assert len(values(model)) == 5


def _all(rank, world_size):
    _freezing(rank, world_size)
    _unused(rank, world_size)
    _used_often(rank, world_size)
    return True


def test_frozen_unused_and_shared_parameters(run_ranks):
    assert all(run_ranks(2, _all))
