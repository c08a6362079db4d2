"""Plain Python values as JSON and back. Nothing in a file is ever run."""

import json
import math
from collections.abc import Callable
from typing import Any

import torch

_MARKERS = ("float", "int", "items", "tensor", "tuple")


def to_json(value: Any, where: str, on_tensor: Callable[[str, torch.Tensor], None] | None = None) -> str:
    """The JSON text of a value. Tensors in it go to ``on_tensor`` with the path that they have."""
    return json.dumps(_encode(value, where, on_tensor), allow_nan=False)


def from_json(text: str, tensors: dict[str, torch.Tensor] | None = None) -> Any:
    """The value again, with the tensors by their paths."""
    return _decode(json.loads(text), tensors or {})


def _encode(value: Any, where: str, on_tensor: Callable | None) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else {"int": str(value)}  # JSON's numbers end there, or are rounded
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.Tensor) and on_tensor is not None:
        on_tensor(where, value)
        return {"tensor": where}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{where}/{i}", on_tensor) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        pairs = [(key, _encode(item, f"{where}/{key}", on_tensor)) for key, item in value.items()]
        if all(isinstance(key, str) for key in value) and not (len(value) == 1 and next(iter(value)) in _MARKERS):
            return dict(pairs)
        return {"items": [[_encode(key, f"{where}/{key}", None), item] for key, item in pairs]}
    raise TypeError(
        f"'{where}' is of type {type(value).__name__}, which a checkpoint cannot hold: it takes None, bool, int, "
        "float, str, tensors, and lists, tuples and dicts of these"
    )


def _decode(value: Any, tensors: dict) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (marker, inner), *_ = value.items()
        if marker == "float":
            return float(inner)
        if marker == "int":
            return int(inner)
        if marker == "tensor":
            return tensors[inner]
        if marker == "tuple":
            return tuple(_decode(item, tensors) for item in inner)
        if marker == "items":
            return {_decode(key, tensors): _decode(item, tensors) for key, item in inner}
    return {key: _decode(item, tensors) for key, item in value.items()}
