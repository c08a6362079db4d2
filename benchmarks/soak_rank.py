"""One rank of a soak: trains in one mode, and now and then counts what must not grow."""

import gc
import math
import os
import sys
import time
import warnings
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import memory
import systems
from soak_modes import Small, batch, with_loss

#: Of collectives: a rank that is gone ends the run, and a machine that is suspended for minutes does not.
TIMEOUT = timedelta(minutes=15)
RANKS = 2
#: Collectives that torch's flight recorder keeps. Of its usual 2000, with half a kilobyte each, it would still be
#: taking memory when counting begins.
RECORDED = 16
#: Steps for each one of the reference.
REFERENCE = 16


@dataclass(frozen=True)
class Work:
    steps: int
    #: Steps from one sample to the next.
    every: int
    #: When it ends, if it has not done all steps by then.
    seconds: float = math.inf
    #: Whether a step makes and drops models; then free memory goes back to the system before it is counted.
    is_cycles: bool = False


def live_tensors() -> int:
    """Those that Python has; its garbage collector knows them all."""
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


COUNTS: dict[str, Callable[[dist.Store], float]] = {
    "resident": lambda store: memory.own(),
    "heap": lambda store: memory.in_use(),
    "objects": lambda store: sys.getallocatedblocks(),
    "tensors": lambda store: live_tensors(),
    "threads": lambda store: len(os.listdir("/proc/self/task")),
    "descriptors": lambda store: len(os.listdir("/proc/self/fd")),
    "keys": lambda store: store.num_keys(),
}


class Samples:
    """What was counted, and the time of steps. Has all memory from the start, so that it does not see itself grow."""

    def __init__(self, count: int) -> None:
        self._taken = 0
        self.values = {name: array("d", bytes(8 * count)) for name in [*COUNTS, "cpu", "wall"]}

    def add(self, store: dist.Store, work: Work, cpu: float, wall: float) -> None:
        gc.collect()
        if work.is_cycles:
            memory.give_back()
        for name, count in COUNTS.items():
            self.values[name][self._taken] = count(store)
        self.values["cpu"][self._taken] = cpu
        self.values["wall"][self._taken] = wall
        self._taken += 1

    def taken(self) -> dict[str, list[float]]:
        return {name: list(values[: self._taken]) for name, values in self.values.items()}


class Reference:
    """A plain step and an all-reduce of torch's, which say how quick the machine is at the moment."""

    def __init__(self) -> None:
        model = Small()
        self._training = with_loss(systems.alone(model))
        self._gradients = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))

    def train(self) -> None:
        self._training.train(*batch())
        dist.all_reduce(self._gradients)


def timed(train: Callable[[], object], count: int) -> tuple[float, float]:
    """Seconds of the processor and of the clock that each of some steps took."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        train()
    return (time.process_time() - cpu) / count, (time.perf_counter() - wall) / count


def must_end(deadline: float) -> bool:
    """Whether time is up for a rank. Collective."""
    is_late = torch.tensor(float(time.monotonic() > deadline))
    dist.all_reduce(is_late, op=dist.ReduceOp.MAX)
    return bool(is_late)


def soak(make: Callable, work: Work, folder: Path, store: dist.Store) -> dict[str, list[float]]:
    """What was sampled; times of the processor are relative to the reference's, which has its steps in turn."""
    deadline = time.monotonic() + work.seconds
    training, reference = make(Small(), folder / "saved"), Reference()
    samples = Samples(work.steps // work.every)
    for _ in range(work.steps // work.every):
        cpu, wall = timed(lambda: training.train(*batch()), work.every)
        beside, _ = timed(reference.train, max(1, work.every // REFERENCE))
        samples.add(store, work, cpu / beside, wall)
        if math.isfinite(work.seconds) and must_end(deadline):
            break
    training.finish()
    return samples.taken()


def main(rank: int, make: Callable, work: Work, folder: str) -> None:
    gc.collect()
    gc.freeze()  # what was imported stays, and need not be looked through at every sample
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(RECORDED)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=TIMEOUT)
    torch.save(soak(make, work, Path(folder), store), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
