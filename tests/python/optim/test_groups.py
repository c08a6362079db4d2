"""OSS over process groups that are not the world: each half of four ranks trains a model of its own, as with DDP."""

import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values

OPTIONS = {"lr": 1e-2, "weight_decay": 0.1}


def train(model, optimizer, rank):
    for step in range(5):
        loss_of(model(inputs(rank, step))).backward()
        optimizer.step()
        optimizer.zero_grad()


def _smaller_group(rank, world_size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, first = pairs[rank // 2], rank // 2 * 2
    plain = mlp(seed=first)
    train(DistributedDataParallel(plain, process_group=group), torch.optim.AdamW(plain.parameters(), **OPTIONS), rank)
    model = mlp(seed=rank)  # rank 0 of the group has the values that count
    optimizer = OSS(model.parameters(), torch.optim.AdamW, group, bucket_bytes=600, **OPTIONS)
    parallel = ShardedDataParallel(model, optimizer, process_group=group)
    assert (optimizer.group.rank, optimizer.group.size) == (rank % 2, 2)
    train(parallel, optimizer, rank)
    for ours, theirs in zip(values(model), values(plain), strict=True):
        assert ours.equal(theirs)
    loss_of(parallel(inputs(rank, 50))).backward()
    (sum(loss_of(plain(inputs(first + r, 50))) for r in range(2)) / 2).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 1e-2)
    assert optimizer.clip_grad_norm(1e-2).item() == pytest.approx(expected.item(), rel=1e-6)
    optimizer.consolidate_state_dict(1)
    if rank % 2 == 1:
        torch.save(optimizer.state_dict(), io.BytesIO())
        assert len(optimizer.state_dict()["state"]) == 6
    else:
        with pytest.raises(RuntimeError, match="consolidate_state_dict"):
            torch.save(optimizer.state_dict(), io.BytesIO())
    return True


def test_a_group_that_is_not_the_world(run_ranks):
    assert all(run_ranks(4, _smaller_group))
