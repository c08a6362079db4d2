"""One rank of gpu_training.py: a process that keeps its group and trains with one system after another."""

import ctypes
import gc
import os
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

import harness
from models import make_inputs, make_model
from systems import SYSTEMS, Training, alone


@dataclass(frozen=True)
class Work(harness.Work):
    """What every system of a row does, in bfloat16 autocast."""

    warmup: int = 3
    more_rounds: int = 0
    length: int = 1024
    #: Steps that begin on an idle device, for the host's time.
    host_steps: int = 5
    #: One process in a group whose collectives do nothing: what is left is what a wrapper itself costs.
    is_fake: bool = False

    @property
    def processes(self) -> int:
        return 1 if self.is_fake else self.ranks


def serve(connection: Connection, work: Work, rank: int, device_type: str, folder: Path) -> None:
    """Says where it runs, and then trains with every system that it is told, until it is told None.

    An error ends it: what other ranks have under way, and in which state the group is, nobody knows then.
    """
    warnings.simplefilter("ignore")
    try:
        device = _join_group(work, rank, device_type, folder)
        _train_a_little(device)
        connection.send(_where(device))
        while (system := connection.recv()) is not None:
            connection.send(_measure(system, work, rank, device))
        dist.destroy_process_group()
    except Exception as error:
        traceback.print_exc()
        connection.send({"reason": reason_of(error)})


def reason_of(error: Exception) -> str:
    """An error in one line. NCCL's own words come last in torch's message."""
    text = str(error).strip()
    told = text.rpartition("Last error:")[2].strip() or text
    return f"{type(error).__name__}: {told.splitlines()[0] if told else 'without a message'}"


def _join_group(work: Work, rank: int, device_type: str, folder: Path) -> torch.device:
    """Ranks share GPUs where there are fewer of these."""
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // work.processes))
    device = torch.device(device_type)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if work.is_fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=work.ranks)
    else:
        store = dist.FileStore(str(folder / "store"), work.ranks)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=work.ranks)
    _meet(device)  # NCCL connects at the first collective, and says there what it does not like
    return device


def _where(device: torch.device) -> dict:
    if device.type != "cuda":
        return {"device": device.type, "devices": 1}
    return {
        "device": torch.cuda.get_device_name(device),
        "devices": torch.cuda.device_count(),
        "memory_gb": round(torch.cuda.get_device_properties(device).total_memory / 1e9),
        "nccl": _nccl_version(),
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        "environment": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
    }


def _nccl_version() -> str:
    """Of the library that is loaded, which need not be the one that torch was built with."""
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def _train_a_little(device: torch.device) -> None:
    """Has libraries make what they keep for good, so that it counts as no system's memory or time."""
    work = Work("tiny-tied", ranks=1, batch=2, steps=1, length=16)
    _training(alone, work, device).train(*_inputs(work, 0, device))


def _training(make: Callable[..., Training], work: Work, device: torch.device) -> Training:
    with device:
        model = make_model(work.model, work.length)
    training = make(model)
    wrapped = training.forward

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return wrapped(*inputs)

    training.forward = forward
    return training


def _inputs(work: Work, rank: int, device: torch.device) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in make_inputs(work.model, work.batch, rank, work.length)]


def _measure(system: str, work: Work, rank: int, device: torch.device) -> dict:
    _free(device)
    before = _allocated(device)
    figures = _train(SYSTEMS[system].make, work, rank, device)
    figures = {key: value - before if key.endswith("peak") else value for key, value in figures.items()}
    _free(device)
    return figures | {"left": _allocated(device) - before}


def _train(make: Callable[..., Training], work: Work, rank: int, device: torch.device) -> dict:
    training = _training(make, work, device)
    inputs = _inputs(work, rank, device)
    losses = []

    def step() -> None:
        losses.append(training.train(*inputs).detach())

    def settle() -> None:
        training.finish()
        _meet(device)

    for _ in range(work.warmup):
        step()
    settle()
    first_peak = _take_peak(device)
    start = time.perf_counter()
    for _ in range(work.steps):
        step()
    settle()
    seconds = (time.perf_counter() - start) / work.steps
    host = []
    for _ in range(work.host_steps):
        start = time.perf_counter()
        step()
        host.append(time.perf_counter() - start)
        settle()
    peak = _take_peak(device)
    return {
        "ms": 1e3 * seconds,
        "host_ms": 1e3 * statistics.median(host),
        "peak": peak,
        "first_peak": max(first_peak, peak),
        "losses": torch.stack(losses).float().tolist(),
    }


def _meet(device: torch.device) -> None:
    """Returns when all ranks are here and their devices are idle."""
    torch.get_device_module(device).synchronize()
    dist.all_reduce(torch.zeros(1, device=device))
    torch.get_device_module(device).synchronize()


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _take_peak(device: torch.device) -> int:
    """The most that was allocated since it was last asked for."""
    if device.type != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def _free(device: torch.device) -> None:
    """Lets go of what the last system left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
