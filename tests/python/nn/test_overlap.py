"""overlap_gather: parameters that are still being gathered after step() are waited for wherever they are used."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of
from support.ranks import device

OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}
STEPS = 5


class Block(nn.Module):
    """Uses weights of children that it does not call."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.never_called = nn.Linear(16, 16)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return torch.tanh(F.linear(x, self.never_called.weight, self.never_called.bias))


class Model(nn.Module):
    other_way_in_evaluation = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.first = nn.Linear(10, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        is_called = self.training or not self.other_way_in_evaluation
        x = (self.first(x) if is_called else F.linear(x, self.first.weight, self.first.bias))[None]
        for block in self.blocks:
            x = block(x)
        return self.last(x[0])


def be_late(rank):
    """Keeps rank 1 busy, so that rank 0 is far ahead of it and a wait that is missing shows."""
    if rank == 1 and device().type == "cuda":
        torch.cuda._sleep(50_000_000)  # cycles
    elif rank == 1:
        work = torch.randn(400, 400)
        for _ in range(40):
            work = torch.tanh(work @ work)


def train(model, optimizer, rank, steps=STEPS):
    for step in range(steps):
        loss_of(model(inputs(rank, step))).backward()
        if step in (1, STEPS - 1):
            be_late(rank)
        optimizer.step()
        optimizer.zero_grad()


def sharded():
    model = Model().to(device())
    optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, overlap_gather=True, **OPTIONS)
    assert optimizer.overlap_gather and optimizer.sharded_step.flat_groups[0].buckets > 10
    return model, optimizer, ShardedDataParallel(model, optimizer)


def trained_plain(rank):
    plain = Model().to(device())
    train(DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), **OPTIONS), rank)
    return plain


def check(ours, plain, what):
    for (name, a), b in zip(ours.items(), plain.state_dict().values(), strict=True):
        assert a.equal(b), (what, name)


def _uses(rank, world_size):
    plain = trained_plain(rank)
    data = inputs(0, 77)

    # what is read right after the last step, each time in a run of its own
    model, optimizer, parallel = sharded()
    train(parallel, optimizer, rank)
    check(parallel.state_dict(), plain, "state_dict")

    model, optimizer, parallel = sharded()
    train(parallel, optimizer, rank)
    assert model(data).equal(plain(data)), "the inner module"
    optimizer.wait_for_parameters()
    check(model.state_dict(), plain, "after wait_for_parameters")

    model, optimizer, parallel = sharded()
    train(parallel, optimizer, rank)
    assert model.blocks[0](data[None, :, :1].expand(1, 6, 16)).equal(
        plain.blocks[0](data[None, :, :1].expand(1, 6, 16))
    ), "a block of the inner module"

    check_evaluation(rank, other_way=False)

    # loading is not overwritten by a gather that arrives later
    model, optimizer, parallel = sharded()
    train(parallel, optimizer, rank, steps=2)
    parallel.load_state_dict(plain.state_dict())
    optimizer.wait_for_parameters()
    check(parallel.state_dict(), plain, "load_state_dict")
    return True


@pytest.mark.costly
def test_trains_as_ddp_and_values_are_complete_when_used(run_ranks):
    assert all(run_ranks(2, _uses))


def check_evaluation(rank, other_way):
    plain = trained_plain(rank).eval()
    data = inputs(0, 77)
    for is_inner in (False, True):
        model, optimizer, parallel = sharded()
        model.other_way_in_evaluation = other_way
        train(parallel, optimizer, rank)
        parallel.eval()
        with torch.no_grad():
            ours, theirs = (model if is_inner else parallel)(data), plain(data)
        # Attention has another kernel for modules without hooks.
        torch.testing.assert_close(ours, theirs, msg=lambda m, inner=is_inner: f"evaluation, {inner=}: {m}")


def _another_way(rank, world_size):
    check_evaluation(rank, other_way=True)
    return True


@pytest.mark.costly
def test_evaluation_that_uses_a_child_directly_which_training_calls(run_ranks):
    assert all(run_ranks(2, _another_way))


class Curious(Model):
    """Reads weights of modules below it before these are called, and after: by themselves and through a view."""

    def forward(self, x):
        penalty = sum(block.never_called.weight.square().mean() for block in self.blocks)
        scale = torch.stack([p.detach().abs().max() for p in self.blocks[1].parameters()]).max()
        return super().forward(x) * scale + penalty + self.blocks[0].attention.in_proj_weight.data.mean()


def trained_average(model, parallel, optimizer, rank):
    """Trains, and reads all parameters right after each step, for a moving average."""
    average = [p.detach().clone() for p in model.parameters()]
    for step in range(STEPS):
        loss_of(parallel(inputs(rank, step))).backward()
        be_late(rank)
        optimizer.step()
        with torch.no_grad():
            if step % 2:
                torch._foreach_lerp_(average, list(model.parameters()), 0.5)
            else:
                for mean, p in zip(average, model.parameters(), strict=True):
                    mean.lerp_(p.data, 0.5)
        optimizer.zero_grad()
    return average


def _read_on_the_way(rank, world_size):
    plain = Curious().to(device())
    theirs = trained_average(
        plain, DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), **OPTIONS), rank
    )
    for options in {}, {"step_in_backward": True}, {"gather_dtype": torch.float32}:
        model = Curious().to(device())
        optimizer = OSS(
            model.parameters(), torch.optim.AdamW, bucket_bytes=600, overlap_gather=True, **options, **OPTIONS
        )
        parallel = ShardedDataParallel(model, optimizer)
        ours = trained_average(model, parallel, optimizer, rank)
        for a, b in zip(ours, theirs, strict=True):
            assert a.equal(b), options
        check(parallel.state_dict(), plain, options)
    return True


def test_whoever_reads_a_parameter_that_is_on_its_way_waits_for_it(run_ranks):
    assert all(run_ranks(2, _read_on_the_way))
