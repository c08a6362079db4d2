"""Ranks with an OffloadModel each, of whose optimizer they own half each (ZeRO-Offload)."""

import copy

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from fairshard.experimental.nn.offload import OffloadModel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values
from support.offload import same
from support.ranks import device


def train(rank, world_size, mode, checkpoints):
    plain = mlp()
    ddp = DistributedDataParallel(plain)
    plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    model = copy.deepcopy(plain).cpu()
    offload = OffloadModel(model, device(), checkpoint_activation=checkpoints)
    optimizer = OSS(offload.parameters(), torch.optim.AdamW, lr=1e-2, bucket_bytes=2000)
    parallel = ShardedDataParallel(offload, optimizer, mode=mode)
    for step in range(10):
        ddp.zero_grad()
        loss_of(ddp(inputs(rank, step))).backward()
        plain_optimizer.step()
        parallel.zero_grad()
        if step == 5:  # an accumulated half, and the other
            with parallel.no_sync():
                (loss_of(parallel(inputs(rank, step))) / 2).backward()
            (loss_of(parallel(inputs(rank, step))) / 2).backward()
        else:
            loss_of(parallel(inputs(rank, step))).backward()
        optimizer.step()
    owned = sum(p.numel() for group in optimizer.optim.param_groups for p in group["params"])
    return values(plain), values(model), owned / sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("mode, checkpoints", [("gradients", True), ("optimizer", False)])
def test_two_ranks_train_as_ddp(run_ranks, backend, mode, checkpoints):
    results = run_ranks(2, train, mode, checkpoints)
    for plain, ours, share in results:
        if backend != "nccl":  # else the plain model is stepped on the GPU, the offloaded one on the CPU
            same(ours, plain)
        for a, b in zip(ours, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert share == pytest.approx(0.5, abs=0.05)
    same(results[0][1], results[1][1])
