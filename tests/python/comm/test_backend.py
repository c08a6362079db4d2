"""The backend "fairshard" under torch's own collectives, DDP, FSDP2 and DeviceMesh."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fairshard import comm
from support.ranks import run_ranks


def numbers(rank, count=8):
    return torch.arange(float(count)) + 10 * rank


def _collectives(rank, n):
    own, everybodys = numbers(rank), [numbers(r) for r in range(n)]
    gathered = [torch.empty(8) for _ in range(n)]
    dist.all_gather(gathered, own)
    assert torch.stack(gathered).equal(torch.stack(everybodys))
    flat = torch.empty(n, 8)
    dist.all_gather_into_tensor(flat, own)
    assert flat.equal(torch.stack(everybodys))
    part = torch.empty(8)
    dist.reduce_scatter_tensor(part, flat.clone())
    assert part.equal(n * own)
    dist.reduce_scatter(part, [row.clone() for row in flat])
    assert part.equal(n * own)
    total = own.clone()
    dist.reduce(total, n - 1)
    assert rank != n - 1 or total.equal(sum(everybodys))
    lists = [torch.empty(8) for _ in range(n)] if rank == 0 else None
    dist.gather(own, lists, 0)
    assert rank != 0 or torch.stack(lists).equal(flat)
    received = torch.empty(8)
    dist.scatter(received, [row.clone() for row in flat] if rank == 0 else None, 0)
    assert received.equal(own)
    exchanged = torch.empty(n)
    dist.all_to_all_single(exchanged, torch.arange(float(n)) + 10 * rank)
    assert exchanged.equal(torch.arange(float(n)) * 10 + rank)
    outputs = [torch.empty(3) for _ in range(n)]
    dist.all_to_all(outputs, [torch.full((3,), 10.0 * rank + r) for r in range(n)])
    assert [output[0].item() for output in outputs] == [10 * r + rank for r in range(n)]
    sizes = [r + 1 for r in range(n)]  # rank r gets r + 1 rows from everybody
    rows = torch.empty(n * (rank + 1), 2)
    dist.all_to_all_single(rows, torch.full((sum(sizes), 2), float(rank)), [rank + 1] * n, sizes)
    assert rows[:, 0].equal(torch.arange(float(n)).repeat_interleave(rank + 1))
    if rank == 0:
        dist.send(own, 1)
    elif rank == 1:
        dist.recv(received, 0)
        assert received.equal(numbers(0))
    dist.barrier()
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=30))


def _other_tensors(rank, n):
    strided = torch.ones(3, 4).t()[:2]  # which Gloo sums wrongly
    dist.all_reduce(strided)
    assert (strided == n).all()
    for dtype in (torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.uint8):
        tensor = torch.ones(5, dtype=dtype)
        dist.all_reduce(tensor)
        assert (tensor == n).all()
    flags = torch.tensor([rank == 0, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False]
    product = torch.full((2,), 2.0)
    dist.all_reduce(product, dist.ReduceOp.PRODUCT)
    assert (product == 2**n).all()
    values = [None] * n
    dist.all_gather_object(values, {"rank": rank})
    assert values == [{"rank": r} for r in range(n)]
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    assert future.wait()[0].tolist() == [n] * 3
    first, second = torch.ones(4), torch.ones(5)
    dist.all_reduce_coalesced([first, second])
    assert first[0] == second[0] == n


def _groups(rank, n):
    pair = dist.new_group([0, 1], backend="fairshard")
    if rank < 2:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=pair)
        assert tensor[0] == 2
        part = dist.group.WORLD.split_group([0, 1])
        part.allreduce([tensor]).wait()
        assert tensor[0] == 4
    mesh = init_device_mesh("cpu", (n,))
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=mesh.get_group())
    assert tensor[0] == n


def _all(rank, n):
    _collectives(rank, n)
    _other_tensors(rank, n)
    _groups(rank, n)


@pytest.mark.parametrize("world_size", [2, 3])
def test_torchs_collectives_and_groups(world_size):
    run_ranks("fairshard", world_size, _all)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(300, 300) for _ in range(4)])


def _train(model, rank):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        model(torch.randn(16, 300)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _systems(rank, n):
    over_ddp = _model()
    _train(DistributedDataParallel(over_ddp), rank)
    over_fsdp = _model()
    group = comm.Group()
    for layer in over_fsdp:
        fully_shard(layer)
    _train(fully_shard(over_fsdp), rank)
    sent = group.sent_bytes
    _train(over_fsdp, rank)
    # 4 steps: gathered for forward and again for backward but the last layer, reduced and scattered
    whole, last = (sum(p.numel() * 4 for p in m.parameters()) for m in (_model(), _model()[-1]))
    ideal = 4 * (3 * whole - last) * (n - 1) // n
    return (
        [p.detach() for p in over_ddp.parameters()],
        [p.full_tensor().detach() for p in over_fsdp.parameters()],
        (group.sent_bytes - sent) / ideal,
    )


def test_ddp_and_fsdp_train_as_over_gloo_and_fsdp_sends_what_it_must():
    over_gloo, ours = (run_ranks(backend, 2, _systems)[0] for backend in ("gloo", "fairshard"))
    for kind in range(2):
        assert all(a.equal(b) for a, b in zip(over_gloo[kind], ours[kind], strict=True))
    assert 0.99 < ours[2] < 1.4


def _late(rank, n, folder):
    store = dist.FileStore(f"{folder}/second", n)
    dist.destroy_process_group()
    dist.init_process_group("fairshard", store=store, rank=rank, world_size=n, timeout=datetime.timedelta(seconds=2))
    assert comm.Group().timeout_s == pytest.approx(2, abs=0.01)
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="rank 1 timed out"):
            dist.all_reduce(torch.ones(3))
        assert 1.9 < time.monotonic() - start < 10
        store.set("gave up", "1")
    else:
        store.wait(["gave up"], datetime.timedelta(seconds=60))
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/third", n), rank=rank, world_size=n)


def test_the_timeout_is_that_of_init_process_group(tmp_path):
    run_ranks("fairshard", 2, _late, tmp_path)
