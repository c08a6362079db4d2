"""Parameters are there where they are used, and need not be elsewhere: hooks on the modules that have them."""

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


class BlockHooks:
    """Hooks before and after the forwards of all modules under ``root``.

    A module's parameters are waited for before it runs; where they are released between forward and backward,
    that is done when it has run, and they are brought back when the gradient of its output has come.

    The first forward finds out which modules are called, and waits for everything. Parameters of one that is not
    called (its parent uses them itself, as nn.MultiheadAttention does with its output projection) are waited for by
    the nearest module above it that is. A module that has no lists of blocks waits for its layers' parameters, too,
    as it might use them itself another time. Outside of training, everything is waited for at once.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        #: In the order of their first calls.
        self._called: dict[nn.Module, None] = {}
        #: Of those, what has returned no tensors, and what that was instead.
        self._opaque: dict[nn.Module, type] = {}
        self._needs: dict[nn.Module, list[tuple[Any, list[int]]]] | None = None
        self._parts: list[Any] = []
        #: Where a module's parameters are released, and its number there.
        self._blocks: dict[nn.Module, list[tuple[Any, int]]] = {}
        for module in root.modules():
            module.register_forward_pre_hook(self._before)
            module.register_forward_hook(self._after)

    def forget(self) -> None:
        """To be called when the parameters have other places."""
        self._needs = None

    @property
    def are_assigned(self) -> bool:
        """Whether modules wait for their parameters. If not, somebody must wait for everything."""
        return self._needs is not None

    def assign(self, places: dict) -> None:
        """Shares out the parameters, given with their part and number there, among the modules that were called."""
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
        self._parts = list(dict.fromkeys(part for part, _ in places.values()))  # in one order on all ranks
        self._number_blocks()

    def _number_blocks(self) -> None:
        self._blocks = {}
        for part in self._parts:
            if part.released is None:
                continue
            modules = [module for module in self._called if part in dict(self._needs.get(module, ()))]
            part.released.set_blocks([dict(self._needs[module])[part] for module in modules])
            for number, module in enumerate(modules):
                self._blocks.setdefault(module, []).append((part.released, number))
        for module in self._blocks:
            self._check_is_followed(module)

    def _check_is_followed(self, module: nn.Module) -> None:
        if module in self._opaque:
            raise TypeError(
                f"release_parameters: {type(module).__name__} returns {self._opaque[module].__name__}, in which there "
                "are no tensors to tell when its backward begins"
            )

    def _before(self, module: nn.Module, _: Any) -> None:
        if self._needs is None:
            self._called[module] = None
            return
        if module is self._root and not module.training:
            for part in self._parts:
                part.wait_for_values()
        self._bring(module)
        for part, numbers in self._needs.get(module, ()):
            part.wait_for(numbers)

    def _bring(self, module: nn.Module) -> None:
        """Has a module's parameters in place, before its forward or its backward."""
        blocks = self._blocks.get(module, ())
        for released, number in blocks:
            released.start_block(number)
        for released, number in blocks:
            released.wait_for_block(number)

    def _after(self, module: nn.Module, _: Any, outputs: Any) -> None:
        is_known = self._needs is not None
        if (is_known and module not in self._blocks) or not self._root.training or not torch.is_grad_enabled():
            return
        tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            self._opaque[module] = type(outputs)

        for tensor in tensors:
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self._bring(module))
        if is_known:
            self._check_is_followed(module)
            for released, number in self._blocks[module]:
                released.after_block(number)


def _has_blocks(module: nn.Module) -> bool:
    """Whether a module is a list of others, or has one."""
    lists = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return isinstance(module, lists) or any(isinstance(child, lists) and len(child) > 1 for child in module.children())
