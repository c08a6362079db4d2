"""Data parallelism of ours in each of its modes, beside torch's DDP, made and trained alike."""

import contextlib
import faulthandler
import re
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp

#: By the names of docs/sharding.md, the options of the OSS; None where there is none.
MODES: dict[str, dict | None] = {
    "replicated": None,
    "optimizer": {},
    "gradients": {},
    "step_in_backward": {"step_in_backward": True},
    "overlap_gather": {"overlap_gather": True},
    "release_parameters": {"release_parameters": True},
    "release_parameters+overlap_gather": {"release_parameters": True, "overlap_gather": True},
    "all": {"step_in_backward": True, "release_parameters": True, "overlap_gather": True},
}
SHARDED = [mode for mode, options in MODES.items() if options is not None]
#: Modes that have all gradients before the step.
CLIPPABLE = [mode for mode, options in MODES.items() if not (options or {}).get("step_in_backward")]


def sharded(module: nn.Module, mode: str, optim: type = torch.optim.SGD, bucket_bytes: int | None = 2000, **options):
    """The module wrapped by ours, and its optimizer."""
    if MODES[mode] is None:
        parallel = ShardedDataParallel(module)
        return parallel, optim(module.parameters(), **options)
    optimizer = OSS(module.parameters(), optim, bucket_bytes=bucket_bytes, **MODES[mode], **options)
    parallel = ShardedDataParallel(module, optimizer, mode="optimizer" if mode == "optimizer" else "gradients")
    return parallel, optimizer


def ddp(module: nn.Module, optim: type = torch.optim.SGD, **options):
    """The same of torch's own."""
    return DistributedDataParallel(module), optim(module.parameters(), **options)


def train(parallel: nn.Module, optimizer, rank: int, steps=(0, 1, 2), clip: Callable[[], object] | None = None) -> list:
    """Plain training on the rank's inputs; returns what ``clip``, called after each backward, returned."""
    clipped = []
    for step in steps:
        optimizer.zero_grad()
        loss_of(parallel(inputs(rank, step))).backward()
        if clip is not None:
            clipped.append(clip())
        optimizer.step()
    return clipped


def trained_twins(rank: int, mode: str) -> tuple:
    """A small model trained by ours and the same by DDP, each wrapped and with its optimizer."""
    wrapped = sharded(mlp(), mode, lr=0.1, momentum=0.9)
    theirs = ddp(mlp(), lr=0.1, momentum=0.9)
    train(*theirs, rank)
    train(*wrapped, rank)
    wrapped[0].state_dict()  # collective where parameters are released; what follows is local
    return wrapped, theirs


def whole(parallel: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of a model's parameters and buffers, by the names of the module."""
    state = parallel.state_dict()  # gathers, where that is needed
    return {name.removeprefix("module."): value.detach().clone() for name, value in state.items()}


def assert_same(ours: nn.Module, theirs: nn.Module, what: object = "", rounded: bool = False) -> None:
    """Both have the same values, bit for bit unless ``rounded``."""
    ours, theirs = whole(ours), whole(theirs)
    assert ours.keys() == theirs.keys(), what
    for name, value in theirs.items():
        tolerances = {} if rounded else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(ours[name], value, msg=lambda m, name=name: f"{what}: {name}: {m}", **tolerances)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends this process, with the stacks of its threads, if what is within takes longer."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def said(run: Callable[[], object], pattern: str) -> str | None:
    """Runs it; returns the error, or else the warning, in which the reason is found, or None if nothing was said.

    Other errors go on: an obscure one is no answer.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
        except (RuntimeError, TypeError, ValueError) as error:
            if not re.search(pattern, str(error)):
                raise
            return str(error)
    return next((str(each.message) for each in caught if re.search(pattern, str(each.message))), None)
