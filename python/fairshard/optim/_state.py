"""An OSS's state in the form of a plain torch optimizer's, and back."""

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fairshard import comm

if TYPE_CHECKING:
    from fairshard.optim.oss import OSS


def follow_slices(base: torch.optim.Optimizer, slices: list[list[torch.Tensor]]) -> None:
    """Gives the base optimizer the slices of a new layout; its states take up their dtype and device."""
    for options, values in zip(base.param_groups, slices, strict=True):
        if [id(v) for v in options["params"]] != [id(v) for v in values]:
            if base.state:
                raise RuntimeError("the layout has changed after the base optimizer got its state")
            options["params"] = values
    for values, state in base.state.items():
        for key, value in state.items():
            is_like_values = torch.is_tensor(value) and value.is_floating_point() and value.shape == values.shape
            if is_like_values and key != "step":
                state[key] = value.to(values)


#: The name of master weights in the state of a parameter: what it has in full precision.
MASTER = "master_weights"


def has_state(oss: "OSS") -> bool:
    """Whether ranks have something that the others have not."""
    return bool(oss.optim.state) or (oss._has_stepped and any(entry.has_master for entry in oss.entries))


def is_same(ours: dict[int, dict], theirs: dict) -> bool:
    """Whether two states are made of the very same values."""
    return len(ours) == len(theirs) and all(
        a.keys() == b.keys() and all(a[key] is b[key] for key in a)
        for a, b in zip(ours.values(), theirs.values(), strict=True)
    )


def places_of(oss: "OSS") -> dict[torch.Tensor, int]:
    """The number of each parameter in a torch state dict."""
    tensors = [tensor for group in oss.param_groups for tensor in group["params"]]
    return {tensor: number for number, tensor in reversed(list(enumerate(tensors)))}


def in_memory_order(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements of ``value`` in the order in which those of ``like`` lie in memory."""
    if value.stride() != like.stride():
        value = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return value.as_strided((value.numel(),), (1,), value.storage_offset())


def share_of(oss: "OSS", state_dict: dict) -> tuple[dict, list[tuple]]:
    """The part of a whole state that this rank needs: its base optimizer's state dict, and master weights."""
    theirs, ours = state_dict["param_groups"], oss.param_groups
    sizes = [len(group["params"]) for group in theirs], [len(group["params"]) for group in ours]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the state dict has parameter groups of {sizes[0]} parameters, the optimizer of {sizes[1]}")
    names = [name for group in theirs for name in group["params"]]
    parameters = [parameter for group in ours for parameter in group["params"]]
    keys = dict(zip(reversed(parameters), reversed(names), strict=True))  # of one that is given twice, the first
    left_out = ("params", "param_names")
    state: dict[int, dict] = {}
    masters = []
    groups = [{**copy.deepcopy({k: v for k, v in g.items() if k not in left_out}), "params": []} for g in theirs]
    # The base optimizer numbers its slices group by group.
    for index, entry in enumerate(sorted(oss.entries, key=lambda entry: entry.group)):
        groups[entry.group]["params"].append(index)
        whole = state_dict["state"].get(keys[entry.parameter])
        if whole is not None:
            own = {key: _cut(key, value, entry) for key, value in whole.items()}
            masters.append((entry, own.pop(MASTER, None)))
            if own:
                state[index] = own
    return {"state": state, "param_groups": groups}, masters


def set_masters(masters: list[tuple]) -> None:
    """Sets slices to master weights, where those have the parameter's values: that is seen at the next step.

    The parameters may be loaded before or after the optimizer's state; or not at all, and then they are what counts.
    """
    for entry, values in masters:
        if entry.has_master and values is not None:
            entry.values.copy_(values)
            torch.autograd.graph.increment_version(entry.parameter)


def _cut(key: str, value: Any, entry: Any) -> Any:
    parameter, piece = entry.parameter, entry.slice
    if hasattr(value, "local_part"):  # of torch.distributed.checkpoint: this rank's already
        return value.local_part(entry)
    if torch.is_tensor(value) and value.shape == parameter.shape and key != "step":
        flat = in_memory_order(value, parameter)[piece.begin : piece.end].clone()
        return flat.as_strided(entry.values.shape, entry.values.stride())
    return copy.deepcopy(value)


def consolidate(oss: "OSS", is_recipient: bool) -> dict | None:
    """The states of all parameters, on ranks that are recipients. Collective; one bucket and key at a time."""
    places = places_of(oss)
    whole: dict[int, dict] = {}
    entries = oss.entries
    for part in oss.sharded_step.flat_groups:
        part.update_masters()
    for number, part in enumerate(oss.sharded_step.flat_groups):
        parameters = part.parameters
        pieces = [part.slices_of(rank) for rank in range(oss.group.size)]
        owned = [(entry, with_master(oss, entry)) for entry in entries if entry.flat_group == number]
        for bucket in range(part.buckets):
            own = [(entry, state) for entry, state in owned if state and entry.slice.bucket == bucket]
            kinds = _agree_on_kinds(oss.group, own)
            found = _gather_rest(oss.group, own, kinds)
            for index, values in found.items():
                whole[places[parameters[index]]] = values
            for key, dtype in sorted({(key, dtype) for (_, key), dtype in kinds.items() if dtype}, key=str):
                gathered = _gather_key(oss.group, part, bucket, key, dtype, own)
                if is_recipient:
                    like = {index: parameters[index] for index in found if kinds.get((index, key)) == dtype}
                    for index, value in _assemble(part.bounds(bucket), bucket, pieces, gathered, like).items():
                        whole[places[parameters[index]]][key] = value
    return dict(sorted(whole.items())) if is_recipient else None


def with_master(oss: "OSS", entry: Any) -> dict:
    """The state of a slice of this rank's, and what it has in full precision."""
    state = oss.optim.state.get(entry.values) or {}
    return {**state, MASTER: entry.values} if entry.has_master and has_state(oss) else state


def without_state(oss: "OSS") -> dict:
    """What every rank has of it: the options."""
    groups, first = [], 0
    for group in oss.param_groups:
        indices = list(range(first, first + len(group["params"])))
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": indices})
        first += len(indices)
    return {"state": {}, "param_groups": copy.deepcopy(groups)}


def _exchange(group: comm.Group, value: Any) -> list:
    """Every rank's small Python value, over the group's own ranks."""
    result = [None] * group.size
    if group.size == 1:
        return [value]
    dist.all_gather_object(result, value, group=group.process_group)
    return result


def _agree_on_kinds(group: comm.Group, own: list) -> dict[tuple[int, str], torch.dtype | None]:
    """What a bucket's parameters have under which keys: a dtype for tensors like the slices, None for the rest."""
    mine: dict[tuple[int, str], Any] = {}
    for entry, state in own:
        for key, value in state.items():
            is_like_values = torch.is_tensor(value) and value.shape == entry.values.shape and key != "step"
            mine[entry.slice.parameter, key] = value.dtype if is_like_values else None
    kinds: dict[tuple[int, str], Any] = {}
    for theirs in _exchange(group, mine):
        kinds.update(theirs)
    return kinds


def _gather_key(group: comm.Group, part: Any, bucket: int, key: str, dtype: torch.dtype, own: list) -> torch.Tensor:
    """All ranks' ranges of one bucket of one state, one after another."""
    bounds = part.bounds(bucket)
    device = part.device(bucket)
    values = torch.zeros(bounds[group.rank + 1] - bounds[group.rank], dtype=dtype, device=device)
    for entry, state in own:
        if torch.is_tensor(state.get(key)) and state[key].shape == entry.values.shape:
            offset, length = entry.slice.offset, entry.slice.end - entry.slice.begin
            values[offset : offset + length] = in_memory_order(state[key], entry.values)
    gathered = torch.empty(bounds[-1], dtype=dtype, device=device)
    comm.all_gather(group, gathered, values, f"optimizer state {key}", bounds).wait()
    return gathered


def _assemble(bounds: list[int], bucket: int, pieces: list, gathered: torch.Tensor, like: dict) -> dict:
    """The gathered values as whole tensors in host memory, for those parameters that have a state."""
    result = {
        index: torch.zeros_like(parameter, dtype=gathered.dtype, device="cpu", requires_grad=False)
        for index, parameter in like.items()
    }
    for start, owned in zip(bounds, pieces, strict=False):
        for piece in owned:
            if piece.bucket == bucket and piece.parameter in result:
                whole = result[piece.parameter]
                flat = whole.as_strided((whole.numel(),), (1,), 0)
                begin = start + piece.offset
                flat[piece.begin : piece.end] = gathered[begin : begin + piece.end - piece.begin]
    return result


def _gather_rest(group: comm.Group, own: list, kinds: dict) -> dict[int, dict]:
    """Which parameters have a state, with what is not like the slices (Adam's step) from the first that has it."""
    mine = []
    for entry, state in own:
        number = entry.slice.parameter
        mine.append((number, {key: value for key, value in state.items() if kinds[number, key] is None}))
    found: dict[int, dict] = {}
    for theirs in _exchange(group, mine):
        for parameter, values in theirs:
            found.setdefault(parameter, copy.deepcopy(values))
    return found
