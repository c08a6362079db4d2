"""Gradients that travel in 16 bits: half of the bytes, and training close to that of one plain process."""

import torch

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values

OPTIONS = {"lr": 0.1, "momentum": 0.9}


def trained_plain(steps, world_size):
    plain = mlp()
    optimizer = torch.optim.SGD(plain.parameters(), **OPTIONS)
    for step in range(steps):
        (sum(loss_of(plain(inputs(rank, step))) for rank in range(world_size)) / world_size).backward()
        optimizer.step()
        optimizer.zero_grad()
    return plain


def check_mode(mode, rank, world_size):
    plain = trained_plain(6, world_size)
    sent = []
    for narrow in ({}, {"reduce_dtype": torch.bfloat16}, {"reduce_fp16": True}):
        model = mlp()
        optimizer = OSS(model.parameters(), torch.optim.SGD, bucket_bytes=600, **OPTIONS)
        parallel = ShardedDataParallel(model, optimizer, mode=mode, **narrow)
        for step in range(6):
            loss = loss_of(parallel(inputs(rank, step)))
            before = optimizer.group.sent_bytes
            loss.backward()
            last_sent = optimizer.group.sent_bytes - before
            optimizer.step()
            optimizer.zero_grad()
        sent.append(last_sent)
        for ours, theirs, start in zip(values(model), values(plain), values(mlp()), strict=True):
            error = (ours - theirs).norm() / (theirs - start).norm()
            assert error < (2e-2 if narrow else 1e-5), (narrow, mode, error)
            assert error > 1e-5 or not narrow, "nothing was rounded"
    assert 0.45 < sent[1] / sent[0] < 0.55, (mode, sent)
    assert sent[1] == sent[2], (mode, sent)


def _narrow(rank, world_size):
    for mode in ("gradients", "optimizer"):
        check_mode(mode, rank, world_size)
    return True


def test_gradients_in_half_of_the_bytes(run_ranks):
    assert all(run_ranks(2, _narrow))
