"""Ranks as real processes over any backend, for tests: no port, loopback only, errors come back."""

import datetime
import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

#: What tests that take ranks are run over. Over NCCL ranks have a GPU each, or share one; else all is on the CPU.
BACKENDS = (
    "gloo",
    pytest.param("fairshard", marks=pytest.mark.fairshard),
    pytest.param("nccl", marks=[pytest.mark.nccl, pytest.mark.gpu]),
)
MOST_GPU_RANKS = 4
TIMEOUT = datetime.timedelta(minutes=5)  # of collectives, as one rank may compile for the others on a loaded machine

# Ranks are forked from a server that has imported what takes long, and has done nothing else.
multiprocessing.set_forkserver_preload(["torch._dynamo", "fairshard.nn.data_parallel", "pytest"])


def gpu_ranks() -> int:
    """How many ranks NCCL can have here; more than GPUs where its user has allowed that they share one."""
    gpus = torch.cuda.device_count()
    is_shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    return MOST_GPU_RANKS if gpus and is_shared else min(gpus, MOST_GPU_RANKS)


def require_gpus() -> None:
    """For ``make test-gpu``, which would else find nothing to run and pass."""
    if gpu_ranks() < 2:
        raise SystemExit(
            f"no GPUs for two ranks: torch finds {torch.cuda.device_count()}. Two are needed, or one that ranks may "
            "share (NCCL 2.30 or newer, NCCL_MULTI_RANK_GPU_ENABLE=1)"
        )


def skip_without_gpus(backend: str, world_size: int) -> None:
    if backend == "nccl" and world_size > gpu_ranks():
        pytest.skip(f"{world_size} ranks need as many GPUs, or NCCL_MULTI_RANK_GPU_ENABLE=1")


def device() -> torch.device:
    """Where this rank has its tensors."""
    is_on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_on_gpu else torch.device("cpu")


def set_torchrun_variables() -> None:
    """Tells frameworks of this rank what torchrun would; the process group exists already, and nobody meets anew."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0")
    os.environ.update(TORCHELASTIC_RUN_ID="test", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")


def _run_rank(
    rank: int, backend: str, world_size: int, folder: str, function: Callable[..., object], arguments: tuple
) -> None:
    gc.freeze()  # the garbage collector would walk, and copy, half a second's worth of what the server has imported
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    if backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.backends.cudnn.deterministic = True  # bits are compared
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    try:
        result = function(rank, world_size, *arguments)
        torch.save(result, f"{folder}/{rank}.pt")
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others notice at once, whatever they wait for
    dist.destroy_process_group()


def run_ranks(backend: str, world_size: int, function: Callable[..., object], *arguments: object) -> list:
    """Runs ``function(rank, world_size, *arguments)`` in each of ``world_size`` processes.

    Returns what each returned, in rank order and in host memory. Raises if one of them fails.
    """
    skip_without_gpus(backend, world_size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (backend, world_size, folder, function, arguments)
        mp.start_processes(_run_rank, arguments, nprocs=world_size, start_method="forkserver")
        results = [f"{folder}/{rank}.pt" for rank in range(world_size)]
        return [torch.load(result, map_location="cpu", weights_only=False) for result in results]
