"""Optimizers in a checkpoint: states under "part/parameter/field", options under "part/param_groups"."""

from typing import Any, NamedTuple

import torch

from fairshard.checkpoint._context import Context
from fairshard.checkpoint._values import from_json, to_json
from fairshard.optim import OSS
from fairshard.optim._state import _in_memory_order


class Stepped(NamedTuple):
    """What an optimizer has a state for: a parameter, or the range of one that this rank owns."""

    name: str
    group: int
    parameter: torch.Tensor
    values: torch.Tensor
    begin: int
    end: int


def _is_like(key: str, shape: Any, values: torch.Tensor) -> bool:
    """Whether a state has an element for each of the parameter's."""
    return key != "step" and tuple(shape) == tuple(values.shape)


class OptimizerPart:
    """What plain optimizers and OSS share."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def describe(self, name: str, context: Context) -> None:
        """Nothing is needed of a plain optimizer."""

    @property
    def base(self) -> torch.optim.Optimizer:
        """The optimizer that has the states."""
        return self._optimizer

    def stepped(self, context: Context) -> list[Stepped]:
        """What the base has states for."""
        return [
            Stepped(name, number, parameter, parameter, 0, parameter.numel())
            for number, group in enumerate(self._optimizer.param_groups)
            for name, parameter in zip(self._names(context, number), group["params"], strict=True)
        ]

    def _names(self, context: Context, number: int) -> list[str]:
        group = self._optimizer.param_groups[number]
        own = group.get("param_names") or [f"group{number}.{i}" for i in range(len(group["params"]))]
        return [context.name_of(p) or fallback for p, fallback in zip(group["params"], own, strict=True)]

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves options and states."""
        state.add_value(f"{name}/param_groups", to_json(self._groups(context), f"{name}/param_groups"))
        for stepped in self.stepped(context):
            for field, value in self.base.state.get(stepped.values, {}).items():
                self._save_field(f"{name}/{stepped.name}/{field}", field, value, stepped, state)

    def _groups(self, context: Context) -> list[dict]:
        groups = []
        for number, group in enumerate(self._optimizer.param_groups):
            options = {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
            groups.append({**options, "params": self._names(context, number)})
        return groups

    def _save_field(self, key: str, field: str, value: Any, stepped: Stepped, state: Any) -> None:
        if isinstance(value, torch.Tensor):
            state.add_alike(key, value)
        else:
            state.add_value(key, to_json(value, key))

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Asks for options and states."""
        reader = plan.reader
        for number in range(len(self._optimizer.param_groups)):
            for parameter_name in self._names(context, number):
                prefix = f"{name}/{parameter_name}/"
                for field in _fields(reader, prefix):
                    plan.expects(prefix + field)  # also those of what other ranks own
        states: dict[torch.Tensor, dict] = {}
        groups: list[dict] = []
        plan.add_value(f"{name}/param_groups", lambda text: groups.extend(from_json(text)))
        for stepped in self.stepped(context):
            state: dict[str, Any] = {}
            prefix = f"{name}/{stepped.name}/"
            known = self.base.state.get(stepped.values) or _fields_of_class(self.base)
            found = _fields(reader, prefix)
            for field in found + ([field for field in known if field not in found] if found else []):
                _load_field(prefix + field, field, stepped, state, plan)
            if found:
                states[stepped.values] = state
        plan.then(lambda: self._take(states, groups))

    def _take(self, states: dict, groups: list[dict]) -> None:
        current = self.base.state_dict()["param_groups"]
        if groups and len(groups) != len(current):
            raise ValueError(f"the checkpoint has {len(groups)} parameter groups, the optimizer {len(current)}")
        for ours, theirs in zip(current, groups, strict=False):
            ours.update({key: _typed(ours[key], theirs[key]) for key in ours if key in theirs and key != "params"})
        numbers = [value for group in self.base.param_groups for value in group["params"]]
        state = {number: states[value] for number, value in enumerate(numbers) if value in states}
        self.base.load_state_dict({"state": state, "param_groups": current})


class PlainOptimizerPart(OptimizerPart):
    """An optimizer that all ranks have alike."""


class OssPart(OptimizerPart):
    """An OSS: every rank saves and loads the ranges that it owns."""

    _optimizer: OSS

    def describe(self, name: str, context: Context) -> None:
        """Waits for parameters, and tells where exact values are."""
        for group in self._optimizer.sharded_step.flat_groups:
            group.update_masters()
        context.add_entries(self._optimizer.sharded_step.flat_groups, self._optimizer.entries)

    @property
    def base(self) -> torch.optim.Optimizer:
        """This rank's optimizer, over its slices."""
        return self._optimizer.optim

    def stepped(self, context: Context) -> list[Stepped]:
        """What this rank owns."""
        names = {}
        for number, group in enumerate(self._optimizer.param_groups):
            names.update(zip(group["params"], self._names(context, number), strict=True))
        return [
            Stepped(names[e.parameter], e.group, e.parameter, e.values, e.slice.begin, e.slice.end)
            for e in self._optimizer.entries
        ]

    def _save_field(self, key: str, field: str, value: Any, stepped: Stepped, state: Any) -> None:
        if isinstance(value, torch.Tensor) and _is_like(field, value.shape, stepped.values):
            in_order = _in_memory_order(value, stepped.values)
            state.add_range(key, stepped.parameter, stepped.begin, stepped.end, in_order)
        elif stepped.begin > 0:
            return  # all owners of the parameter have the same
        elif isinstance(value, torch.Tensor):
            state.add_whole(key, value)
        else:
            state.add_own_value(key, to_json(value, key))

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Asks for states, and for exact values of what this rank owns."""
        super().load(name, context, plan)
        for entry in self._optimizer.entries:
            key = context.key_of(entry.parameter)
            if entry.has_master and key is not None and plan.reader.has(key):
                piece, values = entry.slice, entry.values
                plan.add_range(key, entry.parameter, values.dtype, piece.begin, piece.end, _fill(values))

    def _take(self, states: dict, groups: list[dict]) -> None:
        self._optimizer._groups_to_base()
        super()._take(states, groups)
        self._optimizer._groups_from_base()
        self._optimizer.sharded_step.freeze_layout()
        for group in self._optimizer.sharded_step.flat_groups:
            group.publish_masters()


def _fill(values: torch.Tensor) -> Any:
    return lambda read: values.as_strided((values.numel(),), (1,)).copy_(read)


def _fields(reader: Any, prefix: str) -> list[str]:
    names = reader.names_under(prefix) + reader.value_names_under(prefix)
    return [name for name in names if "/" not in name]


def _fields_of_class(base: torch.optim.Optimizer) -> list[str]:
    """What a state must have, as far as that is known before the first step."""
    if isinstance(base, (torch.optim.Adam, torch.optim.AdamW)):
        return ["step", "exp_avg", "exp_avg_sq"]
    return []


def _load_field(key: str, field: str, stepped: Stepped, state: dict, plan: Any) -> None:
    reader, values = plan.reader, stepped.values
    if reader.value(key) is not None:
        plan.add_value(key, lambda text: state.update({field: from_json(text)}))
    elif reader.has(key) and not _is_like(field, reader.shape(key), stepped.parameter):
        plan.add_any(key, lambda read: state.update({field: read.float() if field == "step" else read}))
    else:

        def take(read: torch.Tensor) -> None:
            state[field] = read.as_strided(values.shape, values.stride()).to(values.device)

        plan.add_range(key, stepped.parameter, values.dtype, stepped.begin, stepped.end, take)


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
