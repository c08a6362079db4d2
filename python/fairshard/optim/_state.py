"""An OSS's state in the form of a plain torch optimizer's, and back."""

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fairshard import comm

if TYPE_CHECKING:
    from fairshard.optim.oss import OSS


def slices(oss: "OSS", rank: int) -> list[tuple[int, Any, int, Any]]:
    """What ``rank`` owns: (number of the parameter group, part, number in the part, slice), in order."""
    result = []
    for part, first in zip(oss.parts, oss._first_groups, strict=True):
        groups = [group for _, _, group in part.parameters]
        result += [(first + groups[s.parameter], part, i, s) for i, s in enumerate(part.slices(rank))]
    return result


def _numbers(oss: "OSS") -> dict[torch.Tensor, int]:
    """The number of each parameter in a torch state dict."""
    tensors = [tensor for group in oss.param_groups for tensor in group["params"]]
    return {tensor: number for number, tensor in reversed(list(enumerate(tensors)))}


def _in_memory_order(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements of ``value`` in the order in which those of ``like`` lie in memory."""
    if value.stride() != like.stride():
        value = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def share_of(oss: "OSS", state_dict: dict) -> dict:
    """The part of a whole state that this rank's base optimizer needs, as that one's state dict."""
    theirs, ours = state_dict["param_groups"], oss.param_groups
    sizes = [len(group["params"]) for group in theirs], [len(group["params"]) for group in ours]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the state dict has parameter groups of {sizes[0]} parameters, the optimizer of {sizes[1]}")
    numbers = _numbers(oss)
    own = slices(oss, oss.group.rank)
    # The base optimizer numbers its slices group by group.
    own.sort(key=lambda entry: entry[0])
    state, groups = {}, [{**copy.deepcopy({k: v for k, v in g.items() if k != "params"}), "params": []} for g in theirs]
    for index, (group, part, _, piece) in enumerate(own):
        groups[group].pop("param_names", None)
        groups[group]["params"].append(index)
        parameter = part.parameters[piece.parameter][1]
        whole = state_dict["state"].get(numbers[parameter])
        if whole is not None:
            state[index] = {key: _cut(value, parameter, piece) for key, value in whole.items()}
    return {"state": state, "param_groups": groups}


def _cut(value: Any, parameter: torch.Tensor, piece: Any) -> Any:
    if torch.is_tensor(value) and value.shape == parameter.shape and value.dim() > 0:
        return _in_memory_order(value, parameter)[piece.begin : piece.end].clone()
    return copy.deepcopy(value)


def consolidate(oss: "OSS", is_recipient: bool) -> dict | None:
    """The whole state, on ranks that are recipients. Collective; one bucket and key at a time."""
    numbers = _numbers(oss)
    base_tensors = {(id(part), index): tensor for tensor, part, index in oss._base_tensors()}
    whole: dict[int, dict] = {}
    for part in oss.parts:
        entries = part.slices(oss.group.rank)
        states = [oss.optim.state.get(base_tensors[id(part), i], {}) for i in range(len(entries))]
        for bucket in range(part.buckets):
            own = [(s, state) for s, state in zip(entries, states, strict=True) if s.bucket == bucket and state]
            kinds = _agree_on_kinds(oss.group, own)
            found = _gather_scalars(oss.group, own, kinds)
            parameters = {index: part.parameters[index][1] for index in found}
            for index, values in found.items():
                whole[numbers[parameters[index]]] = values
            for key, kind in kinds.items():
                if isinstance(kind, torch.dtype):
                    gathered = _gather_key(oss.group, part, bucket, key, kind, own)
                    if is_recipient:
                        for index, value in _assemble(oss.group, part, bucket, gathered, parameters):
                            whole[numbers[parameters[index]]][key] = value
    if not is_recipient:
        return None
    groups, first = [], 0
    for group in oss.param_groups:
        indices = list(range(first, first + len(group["params"])))
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": indices})
        first += len(indices)
    return {"state": dict(sorted(whole.items())), "param_groups": copy.deepcopy(groups)}


def _is_per_element(value: Any, piece: Any) -> bool:
    return torch.is_tensor(value) and value.dim() == 1 and value.numel() == piece.end - piece.begin


def _exchange(group: comm.Group, value: Any) -> list:
    """Every rank's small Python value, over the group's own ranks."""
    result = [None] * group.size
    if group.size == 1:
        return [value]
    dist.all_gather_object(result, value, group=group.process_group)
    return result


def _agree_on_kinds(group: comm.Group, own: list) -> dict[str, Any]:
    """Which keys a bucket's state has: a dtype for tensors like the parameter, None for the rest."""
    mine: dict[str, Any] = {}
    for piece, state in own:
        for key, value in state.items():
            mine.setdefault(key, value.dtype if _is_per_element(value, piece) and key != "step" else None)
    kinds: dict[str, Any] = {}
    for theirs in _exchange(group, mine):
        kinds.update(theirs)
    return dict(sorted(kinds.items()))


def _gather_key(group: comm.Group, part: Any, bucket: int, key: str, dtype: torch.dtype, own: list) -> torch.Tensor:
    """All ranks' ranges of one bucket of one state, one after another."""
    length = part.range_length(bucket)
    values = torch.zeros(length, dtype=dtype, device=part.bucket(bucket).device)
    for piece, state in own:
        if key in state:
            values[piece.offset : piece.offset + piece.end - piece.begin] = state[key]
    gathered = torch.empty(length * group.size, dtype=dtype, device=values.device)
    comm.all_gather(group, gathered, values, f"optimizer state {key}").wait()
    return gathered


def _assemble(group: comm.Group, part: Any, bucket: int, gathered: torch.Tensor, parameters: dict) -> list:
    """The gathered values as whole tensors in host memory, for those parameters that have a state."""
    result = {
        index: torch.zeros_like(parameter, dtype=gathered.dtype, device="cpu", requires_grad=False)
        for index, parameter in parameters.items()
    }
    for rank in range(group.size):
        for piece in part.slices(rank):
            if piece.bucket == bucket and piece.parameter in result:
                whole = result[piece.parameter]
                start = rank * part.range_length(bucket) + piece.offset
                flat = whole.as_strided((whole.numel(),), (1,), 0)
                flat[piece.begin : piece.end] = gathered[start : start + piece.end - piece.begin]
    return list(result.items())


def _gather_scalars(group: comm.Group, own: list, kinds: dict) -> dict[int, dict]:
    """Which parameters have a state, with what is not per element (Adam's step) from the first rank that has it."""
    mine = [(piece.parameter, {k: v for k, v in state.items() if kinds.get(k) is None}) for piece, state in own]
    found: dict[int, dict] = {}
    for theirs in _exchange(group, mine):
        for parameter, values in theirs:
            found.setdefault(parameter, copy.deepcopy(values))
    return found
