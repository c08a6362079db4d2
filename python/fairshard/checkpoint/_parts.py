"""How the core reaches what a run consists of; what is saved of it, and under which keys, the core knows."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fairshard._core import parts as _parts
from fairshard.checkpoint._optimizers import optimizer_part
from fairshard.checkpoint._values import from_json, to_json
from fairshard.nn.data_parallel import ShardedDataParallel

__all__ = ["Rng", "has_nodes", "part_of"]


class Rng:
    """The default generators of the CPU and of the GPUs in use, of each rank, as a part of a checkpoint.

    A rank that was not there when it was saved keeps its own.
    """


def part_of(value: Any, name: str, hold: Callable[[Callable], Callable]) -> _parts.Part:
    """The part that knows how to save a value. ``hold``: how the core holds functions."""
    if isinstance(value, nn.Module):
        return _module_part(value, hold)
    if isinstance(value, torch.optim.Optimizer):
        return optimizer_part(value, hold)
    if isinstance(value, Rng):
        return _parts.rng_part()
    if isinstance(value, torch.Tensor):
        return _parts.tensor_part(value)
    if isinstance(value, dict):
        return _parts.group_part(hold(lambda: [(str(key), _item_part(value, key)) for key in value]))
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return _value_part(value.state_dict, lambda state: _load_stateful(value, state), hold)
    raise TypeError(
        f"part '{name}' is of type {type(value).__name__}: a part is a module, an optimizer, Rng(), a tensor, a dict, "
        "or has state_dict and load_state_dict. Put plain values into a dict"
    )


def has_nodes(value: Any) -> bool:
    """Whether nodes train apart, so that all parts are saved for each. Its class says so, and is not imported here."""
    return getattr(type(value), "_has_nodes", False)


def _module_part(wrapper: nn.Module, hold: Callable) -> _parts.Part:
    module = wrapper
    while isinstance(module, (ShardedDataParallel, nn.parallel.DistributedDataParallel)) or has_nodes(module):
        module = module.module

    is_paged = getattr(type(module), "_is_paged", False)

    def items() -> list[tuple]:
        state = module.state_dict(keep_vars=True).items()
        return [
            (key, value if torch.is_tensor(value) else to_json(value, key), isinstance(value, nn.Parameter))
            for key, value in state
        ]

    def wait() -> None:
        if isinstance(wrapper, ShardedDataParallel):
            wrapper.wait_for_parameters()
        if is_paged:
            module.wait_for_step()

    def set_values(values: dict[str, str]) -> None:
        module.load_state_dict({key: from_json(text) for key, text in values.items()}, strict=False)

    # A paged model is in host memory already, and a copy of it would need as much again.
    return _parts.module_part(items=hold(items), wait=hold(wait), set_values=hold(set_values), can_copy=not is_paged)


def _item_part(values: dict, key: Any) -> _parts.Part:
    """An item of a dict: a tensor is filled, anything else replaced."""
    if isinstance(values[key], torch.Tensor):
        return _parts.tensor_part(values[key])
    return _value_part(lambda: values[key], lambda new: values.update({key: new}), lambda function: function)


def _value_part(get: Callable[[], Any], take: Callable[[Any], None], hold: Callable) -> _parts.Part:
    def save(key: str) -> tuple[str, dict[str, torch.Tensor]]:
        tensors: dict[str, torch.Tensor] = {}
        return to_json(get(), key, tensors.__setitem__), tensors

    return _parts.value_part(get=hold(save), set=hold(lambda text, tensors: take(from_json(text, tensors))))


def _load_stateful(stateful: Any, values: dict) -> None:
    for key, value in stateful.state_dict().items():
        if isinstance(value, Counter) and key in values:
            values[key] = Counter(values[key])
    stateful.load_state_dict(values)
