"""ShardedDataParallel with OSS against torch's DistributedDataParallel with the plain optimizer."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard import comm
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

ADAMW = (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1, "fused": True})
SGD = (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "fused": True})


def train(model, optimizer, rank, steps=20):
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model(inputs(rank, step))).backward()
        optimizer.step()


def _modes(rank, world_size):
    for optim, options in (ADAMW, SGD):
        plain = mlp()
        train(DistributedDataParallel(plain), optim(plain.parameters(), **options), rank)
        for mode in ("gradients", "optimizer", "replicated", "oss under ddp", "oss later"):
            model = mlp(seed=0 if mode == "oss under ddp" else rank)
            if mode == "replicated":
                parallel = ShardedDataParallel(model)
                optimizer = optim(model.parameters(), **options)
            elif mode == "oss under ddp":
                parallel = DistributedDataParallel(model)
                optimizer = OSS(parallel.parameters(), optim, bucket_bytes=2000, **options)
            elif mode == "oss later":
                parallel = ShardedDataParallel(model, device_ids=[rank])
                optimizer = OSS(parallel.parameters(), optim, bucket_bytes=2000, **options)
            else:
                optimizer = OSS(model.parameters(), optim, bucket_bytes=2000, **options)
                parallel = ShardedDataParallel(model, optimizer, mode=mode)
            train(parallel, optimizer, rank)
            for ours, theirs in zip(values(model), values(plain), strict=True):
                if world_size == 2:
                    assert ours.equal(theirs), (mode, (ours - theirs).abs().max())
                else:
                    torch.testing.assert_close(ours, theirs, msg=mode)
    return True


@pytest.mark.parametrize("world_size", [1, 2, 3, pytest.param(4, marks=pytest.mark.costly)])
def test_trains_as_torch_ddp(run_ranks, world_size):
    assert all(run_ranks(world_size, _modes))


@pytest.mark.costly
@pytest.mark.cpu_only("at most four ranks share a GPU")
def test_eight_ranks_train_as_torch_ddp(run_ranks):
    assert all(run_ranks(8, _modes))


def _behaviours(rank, world_size):
    model = mlp()
    optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.1)
    parallel = ShardedDataParallel(model, optimizer)
    assert isinstance(optimizer, torch.optim.Optimizer)

    # no_sync adds up and sends nothing, also when it is left by an exception
    group = optimizer.group
    parallel(inputs(rank, 0))
    sent = group.sent_bytes
    with pytest.raises(KeyError), parallel.no_sync():
        loss_of(parallel(inputs(rank, 0))).backward()
        raise KeyError
    assert group.sent_bytes == sent
    loss_of(parallel(inputs(rank, 1))).backward()
    assert group.sent_bytes > sent
    with pytest.raises(RuntimeError, match=r"'0\.weight' is sharded: .* aten::clone needs all"):
        model[0].weight.grad.clone()
    optimizer.step()

    # attributes and state dicts are the module's
    assert parallel.state_dict().keys() == model.state_dict().keys()
    parallel.load_state_dict(model.state_dict())
    parallel.some_flag = 3
    model.other_flag = 4
    assert (parallel.some_flag, parallel.other_flag) == (3, 4)
    with pytest.raises(AttributeError):
        parallel.nothing_of_the_kind  # noqa: B018

    # what cannot be reduced is refused by name
    with pytest.raises(RuntimeError, match="create_graph"):
        model[0].weight.grad = torch.ones_like(model[0].weight).requires_grad_() * 2
        parallel(inputs(rank, 0))
    model[0].weight.grad = None
    model[0].weight.data = torch.ones(2, 3, device=device())
    with pytest.raises(RuntimeError, match=r"'0\.weight' was replaced by Float\[2, 3\]"):
        parallel(inputs(rank, 0))
    return True


def test_behaviours(run_ranks):
    assert all(run_ranks(2, _behaviours))


def _bad_input(rank, world_size):
    with pytest.raises(
        ValueError, match=r"parameter 0: rank 0 has 'weight' Float\[2, 3\], rank 1 has 'weight' Float\[2, 4\]"
    ):
        ShardedDataParallel(nn.Linear(3 + rank, 2).to(device()))
    model = mlp()
    optimizer = OSS(model[0].parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError, match=r"'2\.weight' requires a gradient, but is in no OSS"):
        ShardedDataParallel(model, optimizer)(inputs(rank, 0))
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        ShardedDataParallel(nn.ReLU())
    with pytest.raises(ValueError, match="'sideways'"):
        ShardedDataParallel(mlp(), mode="sideways")
    return True


def test_bad_input(run_ranks):
    assert all(run_ranks(2, _bad_input))


def _buffers(rank, world_size):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).to(device())
    model[0].running_mean.fill_(rank)
    parallel = ShardedDataParallel(model, broadcast_buffers=False, sync_models_at_startup=False)
    assert model[0].running_mean.eq(rank).all()
    parallel.sync_buffers()
    assert model[0].running_mean.eq(0).all()
    parallel(torch.full((4, 3), float(rank), device=device()))
    assert model[0].running_mean.tolist() == pytest.approx([0.1 * rank] * 3)
    parallel.sync_buffers(blocking=True)
    return model[0].running_mean.eq(0).all() and model[0].num_batches_tracked == 1


def test_buffers_are_made_those_of_rank_0(run_ranks):
    assert all(run_ranks(2, _buffers))


def _reduce_by_hand(rank, world_size):
    model = mlp()
    optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.1)
    parallel = ShardedDataParallel(model, optimizer)
    with parallel.no_sync():
        loss_of(parallel(inputs(rank, 0))).backward()
    parallel.reduce()
    optimizer.step()
    plain = mlp()
    (sum(loss_of(plain(inputs(r, 0))) for r in range(world_size)) / world_size).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for ours, theirs in zip(values(model), values(plain), strict=True):
        torch.testing.assert_close(ours, theirs)
    comm.barrier(optimizer.group)
    return True


def test_reduce_by_hand(run_ranks):
    assert all(run_ranks(2, _reduce_by_hand))
