"""A user's program, which is not run: type checkers read it (test_types.py)."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import assert_type

from fairshard import comm
from fairshard._core import comm as core_comm
from fairshard.checkpoint import Checkpoint, Rng
from fairshard.checkpoint.dcp import get_state_dict, set_state_dict
from fairshard.experimental.nn import OffloadModel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale, ShardedGradScaler


def train(model: torch.nn.Module, batches: list[torch.Tensor], loss_of: Callable[[Any], torch.Tensor]) -> float:
    group = comm.Group()
    assert_type(group.rank, int)
    assert_type(group.control_device, torch.device)
    work = comm.all_reduce(group, torch.ones(3), comm.ReduceOp.SUM, label="ones")
    assert_type(work, core_comm.Work)
    work.wait()
    optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=1e-3, overlap_gather=True)
    parallel = ShardedDataParallel(model, optimizer)
    scaler = ShardedGradScaler()
    loss: torch.Tensor | None = None
    with Checkpoint("runs/typed", {"model": parallel, "optimizer": optimizer, "rng": Rng()}, keep=3) as checkpoint:
        report = checkpoint.load()
        start = report.step if report else 0
        assert_type(start, int)
        for step, batch in enumerate(batches, start):
            optimizer.zero_grad()
            loss = loss_of(parallel(batch))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            checkpoint.save(step + 1, blocking=False)
    return 0.0 if loss is None else loss.item()


def offload(model: torch.nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    paged = OffloadModel(model, torch.device("cpu"), optimizer=optimizer)
    paged(torch.ones(2, 3)).sum().backward()
    adascale = AdaScale(optimizer, num_gradients_to_accumulate=2)
    assert_type(adascale.gain(), float)


def with_torchs_own(model: torch.nn.Module, made: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    assert_type(comm.init_process_group(timeout_s=60), comm.Group)
    optimizer = OSS.from_optimizer(made, mesh=mesh)
    assert_type(optimizer, OSS)
    parallel = ShardedDataParallel(model, optimizer, mesh=mesh, mode="optimizer", static_graph=True)
    parallel.register_comm_hook(None, bf16_compress_hook)
    parallel.set_requires_gradient_sync(False)
    assert_type(optimizer.clip_grad_norm(1.0), torch.Tensor)
    optimizer.load_state_dict(optimizer.state_dict())
    model_state, optimizer_state = get_state_dict(parallel, optimizer)
    assert_type(optimizer_state["state"], Any)
    set_state_dict(parallel, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
