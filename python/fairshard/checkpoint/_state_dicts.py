"""A checkpoint's content in the forms that torch knows."""

import os
from typing import Any

import torch

from fairshard._core import store as _store
from fairshard.checkpoint._values import from_json

__all__ = ["model_state_dict", "optimizer_state_dict"]


def model_state_dict(directory: str | os.PathLike[str], part: str = "model") -> dict[str, torch.Tensor]:
    """The tensors of one part of a checkpoint (a folder ``step-...``), whole, under their own names."""
    reader = _store.Reader(os.fspath(directory))
    return {name: reader.read(f"{part}/{name}") for name in reader.names_under(f"{part}/")}


def optimizer_state_dict(directory: str | os.PathLike[str], part: str = "optimizer") -> dict[str, Any]:
    """The state dict that the plain torch optimizer would have, from any number of ranks."""
    reader = _store.Reader(os.fspath(directory))
    text = reader.value(f"{part}/param_groups")
    if text is None:
        raise KeyError(f"{reader.directory} has no optimizer named '{part}'")
    groups, state, number = [], {}, 0
    for options in from_json(text):
        names = options.pop("params")
        # torch's options have tuples (betas), and no lists
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        groups.append({**options, "params": list(range(number, number + len(names)))})
        for name in names:
            prefix = f"{part}/{name}/"
            stored = reader.names_under(prefix) + reader.value_names_under(prefix)
            fields = {field: _read(reader, prefix, field) for field in stored if "/" not in field}
            if fields:
                state[number] = fields
            number += 1
    return {"state": state, "param_groups": groups}


def _read(reader: "_store.Reader", prefix: str, field: str) -> object:
    text = reader.value(prefix + field)
    if text is not None:
        return from_json(text)
    value = reader.read(prefix + field)
    return value.float() if field == "step" else value
