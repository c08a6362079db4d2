"""Checkpoint: named parts of a run, saved together."""

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from fairshard import comm
from fairshard._core import parts as _parts
from fairshard._core import store as _store
from fairshard.checkpoint._parts import has_nodes, part_of

__all__ = ["Checkpoint", "LoadReport", "latest", "list_steps"]

LoadReport = _store.LoadReport


def latest(directory: str | os.PathLike[str]) -> str | None:
    """The folder of the newest complete checkpoint in ``directory``, or None."""
    return _store.latest_checkpoint(os.fspath(directory))


def list_steps(directory: str | os.PathLike[str]) -> list[int]:
    """The steps of the complete checkpoints in ``directory``."""
    return _store.list_checkpoints(os.fspath(directory))


class Checkpoint:
    """Saves and loads the parts of a run, each rank its share.

    Every rank makes it, with the same parts in the same order, and calls ``save``, ``load`` and ``wait``. A run
    saved by some number of ranks goes on with any other, sharded or not; C++'s ``fairshard::Checkpoint`` reads
    the same files.

    A checkpoint is complete or not available: it is written under a temporary name, flushed and renamed. All ranks
    must see ``directory``.

    Example::

        run = {"epoch": 0}
        parts = {"model": model, "optimizer": optimizer, "rng": Rng(), "run": run}
        with Checkpoint("runs/a", parts, keep=3) as checkpoint:
            report = checkpoint.load()  # the newest complete one; None if there is none
            for step in range(report.step if report else 0, 1000):
                ...
                checkpoint.save(step + 1, blocking=False)

    Args:
        directory: a folder for checkpoints, each of them a folder ``step-00000120`` in it.
        parts: what there is to save, by name. An ``nn.Module`` (wrapped or not); an ``OSS`` or any other torch
            optimizer, whose parameters have the names that they have in the modules; a gradient scaler; a
            ``SlowMoDistributedDataParallel``, with which all parts are saved for each node, and which goes on with the
            same nodes and ranks only; ``Rng()`` for the random generators; a tensor; a dict of tensors and plain
            values, which is changed in place by loading; or anything that has ``state_dict`` and ``load_state_dict``.
        process_group: the ranks (default: the world, if there is one).
        keep: how many of the newest checkpoints are kept; 0 keeps all.
        timeout_s: how long a rank waits for others to write their shares, in seconds.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        parts: dict[str, Any],
        *,
        process_group: "dist.ProcessGroup | None" = None,
        keep: int = 0,
        timeout_s: float = 1800,
    ) -> None:
        has_world = dist.is_available() and dist.is_initialized()
        group = comm.Group(process_group) if process_group is not None or has_world else None
        self._checkpoint = _parts.Checkpoint(group, os.fspath(directory), keep, timeout_s)
        self._functions: list[Callable] = []
        for name, value in parts.items():
            self._checkpoint.add_part(name, part_of(value, name, self._weak))
            if has_nodes(value):
                self._checkpoint.set_nodes(value._synchroniser)
                self._checkpoint.add_part(f"{name}.slowmo", _parts.outer_part(value._synchroniser))

    def _weak(self, function: Callable) -> Callable:
        """Has the core hold a function weakly, so that a run which has its own checkpoint can be collected."""
        self._functions.append(function)
        reference = weakref.ref(function)
        return lambda *arguments: reference()(*arguments)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.wait()

    def save(self, step: int, blocking: bool = True) -> None:
        """Saves everything as that of ``step``.

        If not ``blocking``, it returns when the state has been copied to host memory, and a thread writes. The
        next ``save`` or ``wait`` waits for that and raises what it has met. The end of the program waits, too, but
        only warns of that: ``wait`` before it, or use ``with``. With an ``OffloadModel`` among the parts it always
        blocks: the model is written from where it is, because a copy would take as much host memory again.
        """
        (self._checkpoint.save if blocking else self._checkpoint.save_async)(step)

    def wait(self) -> None:
        """Returns when no save is under way; raises what the last one has met."""
        self._checkpoint.wait()

    def load(self, directory: str | os.PathLike[str] | None = None, strict: bool = True) -> "LoadReport | None":
        """Loads the newest complete checkpoint, or that in the folder ``directory``. Returns None if there is none.

        Checkpoints of which none can be used are an error with all reasons. All of it is read and compared with its
        checksums before anything is changed, and all ranks load or none does.

        Parts of the checkpoint that were not given here are passed over. Names that are missing or too many
        are an error that lists them, before anything is changed; with ``strict=False`` they are only reported.
        """
        if directory is None:
            return self._checkpoint.load(strict)
        return self._checkpoint.load_from(os.fspath(directory), strict)
