"""Waits for parameters that are being gathered where they are used: before the module that has them runs."""

from typing import Any

from torch import nn


class BlockWaits:
    """Forward pre-hooks on all modules under ``root``.

    The first forward finds out which modules are called. Parameters of one that is not (its parent uses
    them itself, as nn.MultiheadAttention does with its output projection) are waited for by the nearest
    module above it that is. A module that has no lists of blocks waits for its layers' parameters, too, as it
    might use them itself another time. Outside of training, everything is waited for at once.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._called: set[nn.Module] = set()
        self._needs: dict[nn.Module, list[tuple[Any, list[int]]]] | None = None
        self._parts: set[Any] = set()
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
            is_layer = next(module.children(), None) is None and not _has_blocks(waiting)
            waiting = module if module in self._called and not is_layer else waiting
            for parameter in module.parameters(recurse=False):
                if parameter in places:
                    part, number = places[parameter]
                    needs.setdefault(waiting, {}).setdefault(part, []).append(number)
            for child in module.children():
                visit(child, waiting)

        visit(self._root, self._root)
        self._needs = {module: list(numbers.items()) for module, numbers in needs.items()}
        self._parts = {part for part, _ in places.values()}
        return True

    def _before(self, module: nn.Module, _: Any) -> None:
        if self._needs is None:
            self._called.add(module)
            return
        if module is self._root and not module.training:
            for part in self._parts:
                part.wait_for_values()
        for part, numbers in self._needs.get(module, ()):
            part.wait_for(numbers)


def _has_blocks(module: nn.Module) -> bool:
    """Whether a module is a list of others, or has one."""
    lists = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return isinstance(module, lists) or any(isinstance(child, lists) and len(child) > 1 for child in module.children())
