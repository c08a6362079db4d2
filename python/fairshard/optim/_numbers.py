"""The numbers in an optimizer's options (learning rates, momenta, ...), as one list."""

from collections.abc import Iterator

import torch


def numbers_of(param_groups: list[dict]) -> list[float]:
    """All of them, in one order on all ranks."""
    return [float(number) for options in param_groups for key in _keys(options) for number in _listed(options[key])]


def set_numbers(param_groups: list[dict], numbers: list[float]) -> None:
    """Sets them to such a list."""
    left = iter(numbers)
    for options in param_groups:
        for key in _keys(options):
            options[key] = _like(options[key], left)


def _is_number(value: object) -> bool:
    is_scalar = torch.is_tensor(value) and value.numel() == 1
    return is_scalar or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _keys(options: dict) -> list[str]:
    def is_numeric(value: object) -> bool:
        return _is_number(value) or (isinstance(value, (tuple, list)) and all(map(_is_number, value)))

    return sorted(key for key, value in options.items() if key not in ("params", "param_names") and is_numeric(value))


def _listed(value: object) -> list:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _like(value: object, numbers: Iterator[float]) -> object:
    if isinstance(value, (tuple, list)):
        return type(value)(_like(item, numbers) for item in value)
    number = next(numbers)
    return value.fill_(number) if torch.is_tensor(value) else type(value)(number)
