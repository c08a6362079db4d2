"""A step is queued on the GPU and not waited for: the host runs ahead of it, as it does under DDP."""

import collections

import pytest
import torch
from torch.autograd import DeviceType
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp

pytestmark = pytest.mark.nccl_only
MODES = ("ddp", "replicated", "gradients", "overlap_gather")
OPTIONS = {"lr": 1e-2, "fused": True}
WAITS = {
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "aten::item",
    "aten::_local_scalar_dense",
}


def step_of(mode, rank):
    """A step of a training that has taken a few already."""
    model = mlp()
    if mode in ("ddp", "replicated"):
        parallel = (DistributedDataParallel if mode == "ddp" else ShardedDataParallel)(model)
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    else:
        is_late = mode == "overlap_gather"
        optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, overlap_gather=is_late, **OPTIONS)
        parallel = ShardedDataParallel(model, optimizer)
    data = inputs(rank, 0)

    def step():
        loss_of(parallel(data)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    return step


def waits_of(step):
    """How often which call that waits for the GPU was made in a step, on any thread."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step()
        with record_function("one step"):
            step()
    events = [event for event in trace.events() if event.device_type == DeviceType.CPU]
    (span,) = (event.time_range for event in events if event.name == "one step")
    names = [event.name for event in events if span.start <= event.time_range.start <= span.end]
    assert any(name.startswith("cudaLaunchKernel") for name in names), "the trace has no calls of CUDA"
    return collections.Counter(name for name in names if name in WAITS)


def _traces(rank, world_size):
    return {mode: waits_of(step_of(mode, rank)) for mode in MODES}


def test_no_call_waits_that_ddp_does_not_make(run_ranks):
    for waits in run_ranks(2, _traces):
        for mode in MODES:
            assert not waits[mode] - waits["ddp"], mode


def _behind_a_busy_gpu(rank, world_size):
    for mode in MODES:
        step, woken = step_of(mode, rank), torch.cuda.Event()
        torch.cuda._sleep(1_000_000_000)  # cycles: half a second
        woken.record()
        step()
        assert not woken.query(), f"{mode}: the host has waited for what came before the step"
        torch.cuda.synchronize()


def test_a_step_returns_while_the_gpu_is_still_busy(run_ranks):
    run_ranks(2, _behind_a_busy_gpu)
