"""A rank's part of an optimizer's state, as tensors of which it has a range of elements.

torch.distributed.checkpoint takes them as boxes of a whole tensor, and saves and loads them for any number of ranks.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from fairshard.optim import _state

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

    from fairshard.optim.oss import OSS

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


#: What gives a tensor with the same values.
_COPIES = frozenset(
    getattr(torch.ops.aten, name).default for name in ("alias", "clone", "detach", "_to_copy", "lift_fresh")
)
_WAYS_OUT = (
    "For whole tensors call consolidate_state_dict() on all ranks, and then state_dict() on the recipient rank; to "
    "save each rank's part, there are fairshard.checkpoint.Checkpoint and torch.distributed.checkpoint"
)


class Shard(torch.Tensor):
    """A tensor like a parameter, of which this rank has a range of elements, in the parameter's order of memory."""

    @staticmethod
    def __new__(cls: type, sizes: torch.Size, order: list[int], begin: int, own: torch.Tensor) -> "Shard":
        result = torch.Tensor._make_wrapper_subclass(cls, sizes, dtype=own.dtype, device=own.device)
        result._order, result._begin, result._own = order, begin, own
        return result

    @staticmethod
    def of(entry: Any, value: torch.Tensor) -> "Shard":
        """What a slice of this rank's has in place of its values."""
        parameter = entry.parameter
        # In the order of memory, the last dimension is that of the smallest stride.
        order = sorted(range(parameter.dim()), key=lambda d: (-parameter.stride(d), d))
        return Shard(parameter.shape, order, entry.slice.begin, _state.in_memory_order(value, entry.values))

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
            raise ValueError("the layout of the OSS has changed since it gave this state: ask for it again")
        return self._own.clone().as_strided(entry.values.shape, entry.values.stride())

    # What torch.distributed.checkpoint asks a tensor that is not whole.

    def __create_write_items__(self, fqn: str, _: Any) -> "list[WriteItem]":
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> "list[ChunkStorageMetadata]":
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(offsets, sizes) for offsets, sizes, _ in self._boxes()]

    def __get_tensor_shard__(self, index: "MetadataIndex") -> torch.Tensor:
        return next(part for offsets, _, part in self._boxes() if offsets == index.offset)

    # What else may be done with it.

    def __repr__(self) -> str:
        return f"Shard({tuple(self.shape)}, {self._own.numel()} elements from {self._begin} on)"

    def __deepcopy__(self, memo: dict) -> "Shard":
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(f"a file would have only this rank's part of the optimizer's state. {_WAYS_OUT}")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in _COPIES:
            shard, *rest = args
            return Shard(shard.shape, shard._order, shard._begin, func(shard._own, *rest, **(kwargs or {})))
        raise TypeError(f"{func}: this rank has only a part of the optimizer's state. {_WAYS_OUT}")


def shards_of(oss: "OSS", states: dict[torch.Tensor, dict] | None = None) -> dict[torch.Tensor, dict[str, Any]]:
    """For each parameter of which this rank has a part, its state, or what ``states`` has for its values."""
    result: dict[torch.Tensor, dict[str, Any]] = {}
    for entry in oss.entries:
        fields = _state.with_master(oss, entry) if states is None else states[entry.values]
        if fields:
            result[entry.parameter] = {key: _sharded(key, value, entry) for key, value in fields.items()}
    return result


def _sharded(key: str, value: Any, entry: Any) -> Any:
    if torch.is_tensor(value) and value.shape == entry.values.shape and key != "step":
        return Shard.of(entry, value)
    return value.clone() if torch.is_tensor(value) else value
