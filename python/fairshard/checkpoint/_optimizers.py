"""How the core reaches the options and states of torch's optimizers."""

from collections.abc import Callable
from typing import Any

import torch

from fairshard._core import parts as _parts
from fairshard.checkpoint._values import from_json, to_json
from fairshard.optim import OSS, AdaScale


def optimizer_part(optimizer: torch.optim.Optimizer, hold: Callable[[Callable], Callable]) -> _parts.Part:
    """The part of any optimizer; an AdaScale may be around it, or within an OSS."""
    adascale = optimizer if isinstance(optimizer, AdaScale) else None
    while isinstance(optimizer, AdaScale):
        optimizer = optimizer.optimizer
    oss = optimizer if isinstance(optimizer, OSS) else None
    base = oss.optim if oss else optimizer
    adascale = base if isinstance(base, AdaScale) else adascale

    def groups() -> list[tuple]:
        if oss:
            oss._follow_layout()
        result = []
        for number, group in enumerate(optimizer.param_groups):
            options = {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
            names = group.get("param_names") or [f"group{number}.{i}" for i in range(len(group["params"]))]
            result.append((to_json(options, f"options of group {number}"), group["params"], names))
        return result

    def state(values: torch.Tensor) -> dict[str, Any]:
        fields = base.state.get(values, {})
        return {key: value if torch.is_tensor(value) else to_json(value, key) for key, value in fields.items()}

    def required(values: torch.Tensor) -> list[str]:
        is_adam = isinstance(base, (torch.optim.Adam, torch.optim.AdamW))
        return list(base.state.get(values, {})) or (["step", "exp_avg", "exp_avg_sq"] if is_adam else [])

    def set_options(text: str) -> None:
        for ours, theirs in zip(optimizer.param_groups, from_json(text), strict=True):
            ours.update({key: _typed(ours[key], theirs[key]) for key in ours if key in theirs and key != "params"})

    def set_states(states: list[tuple[torch.Tensor, dict]]) -> None:
        loaded = {values: {key: _taken(key, value) for key, value in fields.items()} for values, fields in states}
        if oss:
            oss._groups_to_base()
        numbers = [values for group in base.param_groups for values in group["params"]]
        by_number = {number: loaded[values] for number, values in enumerate(numbers) if values in loaded}
        base.load_state_dict({"state": by_number, "param_groups": base.state_dict()["param_groups"]})

    return _parts.optimizer_part(
        groups=hold(groups),
        state=hold(state),
        set_options=hold(set_options),
        set_states=hold(set_states),
        required=hold(required),
        sharded=oss and oss.sharded_step,
        meter=adascale and hold(lambda: adascale.meter),
    )


def _plain(value: Any) -> Any:
    """An option in the form that C++ knows too: tensors are numbers, tuples are lists."""
    if torch.is_tensor(value) and value.numel() == 1:
        return value.item()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _typed(ours: Any, theirs: Any) -> Any:
    """A value from the file in the type that the option has here."""
    if isinstance(ours, tuple) and isinstance(theirs, list):
        return tuple(_typed(a, b) for a, b in zip(ours, theirs, strict=True))
    return torch.full_like(ours, theirs) if torch.is_tensor(ours) and not torch.is_tensor(theirs) else theirs


def _taken(field: str, value: Any) -> Any:
    if isinstance(value, str):
        return from_json(value)
    return value.float() if field == "step" else value
