"""Checkpoint: named parts of a run, saved together."""

import os
from typing import Any

import torch.distributed as dist

from fairshard import comm
from fairshard._core import store as _store
from fairshard.checkpoint._context import Context
from fairshard.checkpoint._parts import part_of
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel

__all__ = ["Checkpoint", "LoadReport", "latest", "list_steps"]

LoadReport = _store.LoadReport


def latest(directory: str | os.PathLike) -> str | None:
    """The folder of the newest complete checkpoint in ``directory``, or None."""
    return _store.latest_checkpoint(os.fspath(directory))


def list_steps(directory: str | os.PathLike) -> list[int]:
    """The steps of the complete checkpoints in ``directory``."""
    return _store.list_checkpoints(os.fspath(directory))


class Checkpoint:
    """Saves and loads the parts of a run, each rank its share.

    Every rank makes it, with the same parts in the same order, and calls ``save``, ``load`` and ``wait``. A run
    saved by some number of ranks goes on with any other, sharded or not; C++'s ``fairshard::Checkpoint`` reads
    the same files.

    A checkpoint is complete or not there: it is written under a temporary name, brought to the disk and
    renamed. All ranks must see ``directory``.

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
        directory: str | os.PathLike,
        parts: dict[str, Any],
        *,
        process_group: "dist.ProcessGroup | None" = None,
        keep: int = 0,
        timeout_s: float = 1800,
    ) -> None:
        names = sorted(parts)
        for name in names:
            clashes = [other for other in names if other.startswith(f"{name}/")]
            if not name or clashes:
                raise ValueError(f"parts of a checkpoint need names that do not overlap, but got {names}")
        has_world = dist.is_available() and dist.is_initialized()
        group = comm.Group(process_group) if process_group is not None or has_world else None
        self._saver = _store.Saver(group, os.fspath(directory), keep, timeout_s)
        # The ranks that have the parts alike are all, or those of a node.
        node = next((value.node for value in parts.values() if isinstance(value, SlowMoDistributedDataParallel)), None)
        number, alike = node or (None, group)
        prefix = "" if node is None else _store.node_prefix(number)
        self._rank, self._ranks = (alike.rank, alike.size) if alike is not None else (0, 1)
        self._parts = {prefix + name: part_of(value, name) for name, value in parts.items()}

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
        context = self._context()
        state = _store.State(self._rank, self._ranks)
        for name, part in self._parts.items():
            part.save(name, context, state)
        can_copy = all(getattr(part, "can_copy", True) for part in self._parts.values())
        (self._saver.save_async if can_copy and not blocking else self._saver.save)(step, state)

    def wait(self) -> None:
        """Returns when no save is under way; raises what the last one has met."""
        self._saver.wait()

    def load(self, directory: str | os.PathLike | None = None, strict: bool = True) -> "LoadReport | None":
        """Loads the newest complete checkpoint, or that in the folder ``directory``. Returns None if there is none.

        Checkpoints of which none can be used are an error with all reasons. All of it is read and compared with its
        checksums before anything is changed, and all ranks load or none does.

        Parts of the checkpoint that were not given here are passed over. Names that are missing or too many
        are an error that lists them, before anything is changed; with ``strict=False`` they are only reported.
        """
        source = os.fspath(directory) if directory is not None else self._saver.latest()
        if source is None:
            return None
        context = self._context()
        plans, reports = [], []

        def check() -> None:
            plan = _store.LoadPlan(_store.Reader(source), self._rank, self._ranks)
            for name, part in self._parts.items():
                plan.add_part(name)
                part.load(name, context, plan)
            plans.append(plan)
            reports.append(plan.check(strict))

        self._saver.together(check)
        self._saver.together(plans[0].take)
        plans[0].finish()  # which may be collective, so that all ranks must have come here
        return reports[0]

    def _context(self) -> Context:
        context = Context()
        for name, part in self._parts.items():
            part.describe(name, context)
        return context
