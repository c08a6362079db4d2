"""Waits for parameters that are being gathered where they are used: before the module that has them runs."""

from typing import Any

from torch import nn


class BlockWaits:
    """Forward pre-hooks on all modules under ``root``.

    The first forward finds out which modules are called. Parameters of one that is not (its parent uses
    them itself, as nn.MultiheadAttention does with its output projection) are waited for by the nearest
    module above it that is.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._called: set[nn.Module] = set()
        self._needs: dict[nn.Module, list[tuple[Any, list[int]]]] | None = None
        self._hooks = [module.register_forward_pre_hook(self._before) for module in root.modules()]

    def forget(self) -> None:
        """To be called when the parameters have other places."""
        self._needs = None

    def assign(self, places: dict) -> bool:
        """Shares out the parameters, given with their part and number there, among the modules that were called.

        Returns whether that is known: if not, somebody must wait for everything.
        """
        if self._needs is not None or not self._called:
            return self._needs is not None
        needs: dict[nn.Module, dict[Any, list[int]]] = {}

        def visit(module: nn.Module, waiting: nn.Module) -> None:
            waiting = module if module in self._called else waiting
            for parameter in module.parameters(recurse=False):
                if parameter in places:
                    part, number = places[parameter]
                    needs.setdefault(waiting, {}).setdefault(part, []).append(number)
            for child in module.children():
                visit(child, waiting)

        visit(self._root, self._root)
        self._needs = {module: list(numbers.items()) for module, numbers in needs.items()}
        return True

    def _before(self, module: nn.Module, _: Any) -> None:
        if self._needs is None:
            self._called.add(module)
            return
        for part, numbers in self._needs.get(module, ()):
            part.wait_for(numbers)
