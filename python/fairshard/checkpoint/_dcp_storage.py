"""Checkpoints of ours as a storage of torch.distributed.checkpoint."""

import io
import itertools
import os
import re
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from fairshard import comm
from fairshard._core import store as _store
from fairshard.checkpoint._values import from_json, to_json

#: What an optimizer's options are called, after the name of its part; and one of them, as plans have it.
_GROUPS = "param_groups"
_OPTION = re.compile(rf"([^.]+)\.{_GROUPS}\.(\d+)\.(.+)")


def _to_key(name: str, optimizers: set[str]) -> str:
    """Of "optimizer.state.0.weight.exp_avg", "optimizer/0.weight/exp_avg"; of "model.0.weight", "model/0.weight"."""
    part, _, rest = name.partition(".")
    if part in optimizers and rest.startswith("state."):
        parameter, _, field = rest.removeprefix("state.").rpartition(".")
        return f"{part}/{parameter}/{field}"
    return f"{part}/{rest}" if rest else part


def _to_name(key: str, optimizers: set[str]) -> str:
    """The other way round."""
    part, _, rest = key.partition("/")
    if part in optimizers and rest != _GROUPS:
        parameter, _, field = rest.rpartition("/")
        return f"{part}.state.{parameter}.{field}"
    return f"{part}.{rest}" if rest else part


def _done(value: Any) -> "torch.futures.Future[Any]":
    future = torch.futures.Future()
    future.set_result(value)
    return future


class StorageReader(dcp.StorageReader):
    """Has ``dcp.load`` read a checkpoint that :class:`~fairshard.checkpoint.Checkpoint` has saved, in either language.

    Example::

        dcp.load({"model": model_state}, storage_reader=StorageReader("runs/a/step-00000120"))

    Args:
        directory: the folder of one checkpoint; see :func:`~fairshard.checkpoint.latest`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.reset(directory)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Goes to another checkpoint."""
        if checkpoint_id is not None:
            self._reader = _store.Reader(os.fspath(checkpoint_id))
        ending = f"/{_GROUPS}"
        self._optimizers = {key.removesuffix(ending) for key in self._reader.values if key.endswith(ending)}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What there is, under the names of torch.distributed.checkpoint."""
        entries: dict[str, Any] = {
            _to_name(key, self._optimizers): BytesStorageMetadata() for key in self._reader.values
        }
        for key, (dtype, sizes) in self._reader.tensors.items():
            whole = [ChunkStorageMetadata(torch.Size([0] * len(sizes)), torch.Size(sizes))]
            entries[_to_name(key, self._optimizers)] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), torch.Size(sizes), whole
            )
        return Metadata(entries)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        """Nothing is left to do."""

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        """Any will do."""
        return plan

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        """The same."""
        return plans

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> "torch.futures.Future[Any]":
        """Reads each tensor of the plan once, and takes the boxes that were asked for."""
        for name, items in itertools.groupby(plan.items, lambda item: item.storage_index.fqn):
            key = _to_key(name, self._optimizers)
            whole = None
            for item in items:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, self._bytes_of(key))
                    continue
                whole = self._reader.read(key) if whole is None else whole
                box = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
                target = planner.resolve_tensor(item).detach()
                target.copy_(whole[box])
                planner.commit_tensor(item, target)
        return _done(None)

    def _bytes_of(self, key: str) -> io.BytesIO:
        value = from_json(self._reader.value(key))
        if key.endswith(f"/{_GROUPS}"):  # torch's options have tuples (betas), and no lists
            value = [
                {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
                for group in value
            ]
        result = io.BytesIO()
        torch.save(value, result)
        result.seek(0)
        return result

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a folder with a checkpoint of ours."""
        return os.path.isfile(os.path.join(checkpoint_id, "manifest.json"))


class StorageWriter(dcp.StorageWriter):
    """Has ``dcp.save`` write a checkpoint that :class:`~fairshard.checkpoint.Checkpoint` loads, in either language.

    What ranks have of a tensor is saved as ranges of its elements, so that boxes which are not whole rows (DTensors
    that are sharded by their last dimension) become many small ones. Values other than tensors must be what a
    checkpoint can hold: no code is ever saved.

    Example::

        dcp.save({"model": model_state, "optimizer": optimizer_state}, storage_writer=StorageWriter("runs/a", step=120))

    Args:
        directory: the folder of all checkpoints.
        step: of this one, which becomes ``step-00000120``.
        process_group: the ranks (default: the world, if there is one). Must be that of ``dcp.save``.
    """

    def __init__(
        self, directory: str | os.PathLike[str], step: int, process_group: "dist.ProcessGroup | None" = None
    ) -> None:
        self._directory = os.fspath(directory)
        self._step = step
        has_world = dist.is_available() and dist.is_initialized()
        self._group = comm.Group(process_group) if process_group is not None or has_world else None
        self._optimizers: set[str] = set()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Takes another folder of checkpoints, if one is given."""
        self._directory = self._directory if checkpoint_id is None else os.fspath(checkpoint_id)

    def set_up_storage_writer(self, *_: Any, **__: Any) -> None:
        """Nothing is left to do."""

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        """Sees which parts are optimizers."""
        names = (item.index.fqn for item in plan.items)
        self._optimizers = {match[1] for name in names if (match := _OPTION.match(name))}
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        """Any will do."""
        return plans

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> "torch.futures.Future[Any]":
        """Saves all of it: complete, or not there. Collective."""
        ranges, values = [], {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                data.seek(0)
                values[item.index.fqn] = torch.load(data, weights_only=True)
            elif _OPTION.match(item.index.fqn):
                values[item.index.fqn] = data.item()
            else:
                key, chunk = _to_key(item.index.fqn, self._optimizers), item.tensor_data.chunk
                ranges += _ranges(key, tuple(item.tensor_data.size), tuple(chunk.offsets), data.detach())
        _store.save_ranges(self._group, self._directory, self._step, ranges, self._all_values(values))
        return _done([WriteResult(item.index, 0, None) for item in plan.items])

    def _all_values(self, own: dict[str, Any]) -> dict[str, str]:
        """On the first rank, the values of all: plans have an optimizer's options one by one, on any rank."""
        gathered = [own]
        if self._group is not None and self._group.size > 1:
            gathered = [None] * self._group.size
            dist.all_gather_object(gathered, own, group=self._group.process_group)
        values: dict[str, Any] = {}
        options: dict[str, dict[int, dict]] = {}
        for name, value in (item for theirs in gathered for item in theirs.items()):
            if match := _OPTION.match(name):
                part, number, option = match.groups()
                value = list(value) if isinstance(value, tuple) else value  # the form that C++ knows, too
                options.setdefault(part, {}).setdefault(int(number), {})[option] = value
            else:
                values[_to_key(name, self._optimizers)] = value
        for part, groups in options.items():
            values[f"{part}/{_GROUPS}"] = [groups[number] for number in sorted(groups)]
        is_first = self._group is None or self._group.rank == 0
        return {key: to_json(value, key) for key, value in values.items()} if is_first else {}

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """All is done already."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any folder will do."""
        return True


def _ranges(key: str, sizes: tuple, offsets: tuple, box: torch.Tensor) -> list[tuple]:
    """A box as ranges of the whole tensor's elements, each a run of memory."""
    strides = [1] * len(sizes)
    for d in reversed(range(len(sizes) - 1)):
        strides[d] = strides[d + 1] * sizes[d + 1]
    whole = len(sizes)  # from this dimension on, the box has all
    while whole > 0 and box.shape[whole - 1] == sizes[whole - 1]:
        whole -= 1
    split = max(whole - 1, 0)  # the dimension of which a run has several
    runs = itertools.product(*(range(box.shape[d]) for d in range(split)))
    result = []
    for run in runs:
        begin = sum((o + r) * s for o, r, s in zip(offsets, run, strides, strict=False))
        begin += sum(offsets[d] * strides[d] for d in range(split, len(sizes)))
        result.append((key, list(sizes), begin, box[run].contiguous().view(-1)))
    return result
