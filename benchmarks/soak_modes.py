"""What is soaked: for each mode how a small model is wrapped, and models that are made and dropped again.

A maker takes the model and a folder of the run's, and returns what trains it a step further.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import systems
from systems import Training

BATCH, INPUTS, WIDTH, OUTPUTS = 8, 16, 64, 4
#: All of the model, or so little of it that it has two buckets: each costs messages, and a run is long.
ONE_BUCKET, TWO_BUCKETS = 64 << 10, 24 << 10
SAVE_EVERY = 500


class Small(nn.Sequential):
    """Trains in a millisecond, but has what modes need: layers, and buckets in which these lie."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
        super().__init__(nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh()), *hidden, nn.Linear(WIDTH, OUTPUTS))

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """New noise for every step, so that the loss stays where it is and no gradient becomes too small a number."""
    return torch.randn(BATCH, INPUTS), torch.randn(BATCH, OUTPUTS)


def with_loss(training: Training) -> Training:
    model = training.forward
    training.forward = lambda inputs, targets: functional.mse_loss(model(inputs), targets)
    return training


def peer(make: Callable[[nn.Module], Training], model: nn.Module, folder: Path) -> Training:
    return with_loss(make(model))


def replicated(model: nn.Module, folder: Path) -> Training:
    return with_loss(systems.replicated(model, reduce_buffer_size=ONE_BUCKET // 4))


def sharded(model: nn.Module, folder: Path, bucket_bytes: int = ONE_BUCKET, **options: Any) -> Training:
    return with_loss(systems.sharded(model, bucket_bytes=bucket_bytes, **options))


def offload(model: nn.Module, folder: Path) -> Training:
    from fairshard.experimental.nn import OffloadModel

    optimizer = torch.optim.AdamW(model.parameters(), **systems.ADAMW)
    parallel = OffloadModel(model, torch.device("cpu"), num_slices=3, optimizer=optimizer, optimizer_threads=1)
    return with_loss(Training(parallel, optimizer, finish=parallel.wait_for_step))


def slowmo(model: nn.Module, folder: Path) -> Training:
    from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel

    parallel = SlowMoDistributedDataParallel(model, nprocs_per_node=1)
    optimizer = torch.optim.SGD(model.parameters(), **systems.SGD)

    def step() -> None:
        optimizer.step()
        parallel.perform_slowmo(optimizer)

    return with_loss(Training(parallel, optimizer, step=step))


def scaled(model: nn.Module, folder: Path) -> Training:
    """With AdaScale, and with a ShardedGradScaler that doubles its scale until gradients overflow, and on."""
    from fairshard.optim import AdaScale
    from fairshard.optim.grad_scaler import ShardedGradScaler

    training = systems.wrapped_sgd(model, AdaScale, bucket_bytes=ONE_BUCKET)
    return with_loss(systems.scaled(training, ShardedGradScaler(growth_interval=100, device="cpu")))


class Saved:
    """Training in the default mode, with a checkpoint that is written while it goes on."""

    def __init__(self, model: nn.Module, folder: Path, every: int = SAVE_EVERY) -> None:
        from fairshard.checkpoint import Checkpoint

        self._training, self._every, self._steps = sharded(model, folder), every, 0
        parts = {"model": model, "optimizer": self._training.optimizer}
        self._checkpoint = Checkpoint(folder, parts, keep=2)

    def train(self, *inputs: torch.Tensor) -> torch.Tensor:
        loss = self._training.train(*inputs)
        self._steps += 1
        if self._steps % self._every == 0:
            self._checkpoint.save(self._steps, blocking=False)
        return loss

    def finish(self) -> None:
        self._checkpoint.wait()


#: Makers of what can be wrapped, trained and dropped in a moment.
MODES: dict[str, Callable[[nn.Module, Path], Any]] = {
    "replicated": replicated,
    "optimizer": functools.partial(sharded, mode="optimizer"),
    "gradients": functools.partial(sharded, bucket_bytes=TWO_BUCKETS),
    "overlap_gather": functools.partial(sharded, bucket_bytes=TWO_BUCKETS, overlap_gather=True),
    "step_in_backward": functools.partial(sharded, step_in_backward=True),
    "release_parameters": functools.partial(sharded, bucket_bytes=TWO_BUCKETS, release_parameters=True),
    "offload": offload,
    "slowmo": slowmo,
    "adascale+scaler": scaled,
}


class Cycles:
    """A step makes a model, wraps it, trains it twice and drops it, once for each of some modes."""

    def __init__(self, modes: list[str], model: nn.Module, folder: Path) -> None:
        self._modes, self._folder = modes, folder

    def train(self, *inputs: torch.Tensor) -> torch.Tensor:
        for name in self._modes:
            training = MODES[name](Small(), self._folder)
            training.train(*inputs)
            loss = training.train(*inputs)
            training.finish()
        return loss

    def finish(self) -> None:
        """Nothing is left."""


CYCLES = "cycles"
OURS = [*MODES, "checkpoints", CYCLES]
PEERS = ["ddp", "fsdp"]


def maker(name: str) -> Callable[[nn.Module, Path], Any]:
    """Also that of "cycles:gradients", to see which mode it is that leaves something behind."""
    if name in PEERS:
        return functools.partial(peer, getattr(systems, name))
    kind, _, only = name.partition(":")
    if kind == CYCLES and only in ("", *MODES):
        return functools.partial(Cycles, [only] if only else list(MODES))
    if name not in OURS:
        raise ValueError(f"there is no mode {name}, but {', '.join([*OURS, *PEERS])}, and {CYCLES}:MODE")
    return Saved if name == "checkpoints" else MODES[name]
