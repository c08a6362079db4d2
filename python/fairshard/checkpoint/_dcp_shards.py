"""A rank's part of an optimizer's state as torch.distributed.checkpoint takes it: boxes of a whole tensor."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from fairshard.optim import OSS, _state

Box = tuple[tuple[int, ...], tuple[int, ...]]


def boxes(sizes: tuple[int, ...], begin: int, end: int) -> Iterator[Box]:
    """Offsets and sizes of the boxes that the elements from ``begin`` to ``end`` of a row-major tensor are, in order.

    At most two for each dimension, less one.
    """
    if begin >= end:
        return
    if not sizes:
        yield (), ()
        return
    row = 1
    for size in sizes[1:]:
        row *= size
    first, last = begin // row, end // row
    if first == last:  # within a row
        yield from (((first, *o), (1, *s)) for o, s in boxes(sizes[1:], begin - first * row, end - first * row))
        return
    if begin % row:
        yield from (((first, *o), (1, *s)) for o, s in boxes(sizes[1:], begin - first * row, row))
        first += 1
    if first < last:
        yield (first, *(0 for _ in sizes[1:])), (last - first, *sizes[1:])
    if end % row:
        yield from (((last, *o), (1, *s)) for o, s in boxes(sizes[1:], 0, end - last * row))


class Shard(torch.Tensor):
    """A tensor like a parameter, of which this rank has a range of elements, in the parameter's order of memory."""

    @staticmethod
    def __new__(cls: type, parameter: torch.Tensor, begin: int, own: torch.Tensor) -> "Shard":
        result = torch.Tensor._make_wrapper_subclass(cls, parameter.shape, dtype=own.dtype, device=own.device)
        result._begin, result._own = begin, own
        # In the order of memory, the last dimension is that of the smallest stride.
        result._order = sorted(range(parameter.dim()), key=lambda d: (-parameter.stride(d), d))
        return result

    def _boxes(self) -> Iterator[tuple[torch.Size, torch.Size, torch.Tensor]]:
        in_memory = tuple(self.shape[d] for d in self._order)
        back = [self._order.index(d) for d in range(len(self._order))]
        position = 0
        for offsets, sizes in boxes(in_memory, self._begin, self._begin + self._own.numel()):
            part = self._own[position : position + torch.Size(sizes).numel()].view(sizes).permute(back)
            position += part.numel()
            yield torch.Size(offsets[d] for d in back), part.shape, part

    def local_part(self, entry: Any) -> torch.Tensor:
        """What it has for a slice of this rank's."""
        piece = entry.slice
        if (piece.begin, piece.end) != (self._begin, self._begin + self._own.numel()):
            raise ValueError("the layout of the OSS has changed since get_state_dict(): call it again before loading")
        return self._own.clone().as_strided(entry.values.shape, entry.values.stride())

    # What torch.distributed.checkpoint asks a tensor that is not whole.

    def __create_write_items__(self, fqn: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(ChunkStorageMetadata(offsets, sizes), properties, self.shape),
            )
            for offsets, sizes, _ in self._boxes()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, sizes) for offsets, sizes, _ in self._boxes()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return next(part for offsets, _, part in self._boxes() if offsets == index.offset)

    def __repr__(self) -> str:
        return f"Shard({tuple(self.shape)}, {self._own.numel()} elements from {self._begin} on)"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        raise TypeError(
            f"{func}: this rank has only a part of the optimizer's state. Give it to torch.distributed.checkpoint's "
            "save and load; for whole tensors use consolidate_state_dict() and state_dict()"
        )


def shards_of(oss: OSS) -> dict[torch.Tensor, dict[str, Any]]:
    """For each parameter of which this rank has a part, its state; before the first step, what that begins with."""
    entries = oss.entries
    states = {entry.values: _state._with_master(oss, entry) for entry in entries}
    if not oss.optim.state:
        states = _first_states(oss, entries)
    result: dict[torch.Tensor, dict[str, Any]] = {}
    for entry in entries:
        fields = states[entry.values]
        if fields:
            result[entry.parameter] = {key: _sharded(key, value, entry) for key, value in fields.items()}
    return result


def _sharded(key: str, value: Any, entry: Any) -> Any:
    if torch.is_tensor(value) and value.shape == entry.values.shape and key != "step":
        return Shard(entry.parameter, entry.slice.begin, _state._in_memory_order(value, entry.values))
    return value.clone() if torch.is_tensor(value) else value


def _first_states(oss: OSS, entries: list) -> dict[torch.Tensor, dict]:
    """The states of an optimizer that has not stepped, to be filled: those of a step of length zero, then undone."""
    base = oss.optim
    rates = [group.get("lr") for group in base.param_groups]
    values = [entry.values for entry in entries]
    before = [value.detach().clone() for value in values]
    try:
        for group in base.param_groups:
            if "lr" in group:
                group["lr"] = torch.zeros_like(group["lr"]) if torch.is_tensor(group["lr"]) else 0.0
        for value in values:
            value.grad = torch.zeros_like(value)
        base.step()
        masters = {e.values: {_state.MASTER: e.values.detach().clone()} if e.has_master else {} for e in entries}
        return {value: {**base.state.get(value, {}), **masters[value]} for value in values}
    finally:
        base.state.clear()
        for group, rate in zip(base.param_groups, rates, strict=True):
            if "lr" in group:
                group["lr"] = rate
        with torch.no_grad():
            for value, old in zip(values, before, strict=True):
                value.grad = None
                value.copy_(old)
