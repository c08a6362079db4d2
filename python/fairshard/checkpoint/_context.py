"""What the parts of a checkpoint know of each other."""

from typing import Any

import torch


class Context:
    """The names of parameters in the modules, and where their exact values are."""

    def __init__(self) -> None:
        self._places: dict[torch.Tensor, tuple[str, str]] = {}
        self._uses: dict[str, int] = {}
        self._exact: dict[torch.Tensor, list] = {}

    def add_module(self, part: str, module: torch.nn.Module) -> None:
        """Says which names parameters have, and that they are saved under "part/name"."""
        for name, parameter in module.named_parameters():
            if parameter not in self._places:
                self._places[parameter] = part, name
                self._uses[name] = self._uses.get(name, 0) + 1

    def add_entries(self, flat_groups: list, entries: list) -> None:
        """Says that parameters may have master weights in these groups of an OSS."""
        for group in flat_groups:
            for number, tensor in enumerate(group.parameters):
                if group.has_master(number):
                    self._exact[tensor] = []
        for entry in entries:
            if entry.parameter in self._exact:
                self._exact[entry.parameter].append(entry)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name of a parameter in its module; with the part's name before it if two modules have the name."""
        if parameter not in self._places:
            return None
        part, name = self._places[parameter]
        return name if self._uses[name] == 1 else f"{part}/{name}"

    def key_of(self, parameter: torch.Tensor) -> str | None:
        """The key under which its values are saved, if they are."""
        place = self._places.get(parameter)
        return None if place is None else "/".join(place)

    def exact_entries_of(self, parameter: torch.Tensor) -> list[Any] | None:
        """If a parameter has an exact copy, the parts of it that this rank owns."""
        return self._exact.get(parameter)
