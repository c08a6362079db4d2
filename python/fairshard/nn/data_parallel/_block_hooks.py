"""Parameters are there where they are used, and need not be elsewhere: hooks on the modules that have them."""

import weakref
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fairshard.nn.data_parallel._compilers import is_compiled, keep_from_compilers, outside_of_compiled
from fairshard.nn.data_parallel._saved_uses import SavedUses


class BlockHooks:
    """Hooks that tell an engine before and after the forwards of all modules under ``root``, which are its blocks.

    They are there while ``wrapper`` is: a module that is wrapped again has those of its new wrapper only.

    The first forward in training finds out which modules are called, on any rank. Parameters of one that is not
    called (its parent uses them itself, as nn.MultiheadAttention does with its output projection) are those of the
    nearest module above it that is. A module that has no lists of blocks has its layers' parameters, too, as it might
    use them itself another time. What another module uses of one that is called is the root's.
    """

    def __init__(self, wrapper: nn.Module, root: nn.Module, engine: Any) -> None:
        keep_from_compilers(BlockHooks, "_before", "_after", "_stop_looking")
        # Modules hold their hooks, so these hold modules weakly.
        self._root = weakref.ref(root)
        self._engine = engine
        self._numbers = weakref.WeakKeyDictionary((module, number) for number, module in enumerate(root.modules()))
        #: In the order of their first calls.
        self._called: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        #: Of those, what has returned no tensors, and what that was instead.
        self._opaque: weakref.WeakKeyDictionary[nn.Module, type] = weakref.WeakKeyDictionary()
        self._blocks: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        #: None where parameters are never resharded, and where compilers would see it.
        self._uses: SavedUses | None = None
        if engine.reshards and not any(is_compiled(module) for module in root.modules()):
            self._uses = SavedUses(root.parameters())
        #: By module. One that is compiled is a block of its own, and is told of outside of what is compiled.
        self._handles: weakref.WeakKeyDictionary[nn.Module, list] = weakref.WeakKeyDictionary()
        #: Takes the hooks from the modules.
        self.remove = weakref.finalize(wrapper, _remove, self._handles)
        self.remove.atexit = False
        for module in outside_of_compiled(root):
            if module._compiled_call_impl is not None:
                self._handles[module] = [_Surrounded(module, self)]
            else:
                # Before others: those of torch's older weight_norm, spectral_norm and pruning read parameters.
                before = module.register_forward_pre_hook(self._before, prepend=True)
                self._handles[module] = [before, module.register_forward_hook(self._after)]
        if self._uses:
            self._handles[root].append(root.register_forward_hook(self._stop_looking, always_call=True))

    def are_in_place(self) -> bool:
        """Whether no module was compiled since."""
        return all(
            handle.is_in_place() if isinstance(handle, _Surrounded) else module._compiled_call_impl is None
            for module, handles in self._handles.items()
            for handle in handles
        )

    def __deepcopy__(self, memo: dict) -> "BlockHooks":
        return BlockHooks.__new__(BlockHooks)  # a copy of the module has no engine

    def __reduce__(self) -> tuple:
        return BlockHooks.__new__, (BlockHooks,)

    def assign(self) -> None:
        """Tells the engine which parameters each module needs."""
        order = self._engine.agree_on_call_order(len(self._numbers), [self._numbers[m] for m in self._called])
        called = set(order)
        modules = list(self._numbers)
        needs: list[list[torch.Tensor]] = [[] for _ in modules]
        left = [(self._root(), 0)]  # modules, each with the number of the block above it
        while left:
            module, block = left.pop()
            number = self._numbers[module]
            is_layer = next(module.children(), None) is None and not _has_blocks(modules[block])
            block = number if number in called and not is_layer else block
            needs[block] += module.parameters(recurse=False)
            left += [(child, block) for child in module.children()]
        if self._uses:
            self._give_to_root(needs)
        self._blocks = weakref.WeakKeyDictionary((modules[number], number) for number in order if needs[number])
        if self._engine.reshards:
            for module in self._blocks:
                self._check_is_followed(module)
        self._engine.set_blocks(needs, [number for number in order if needs[number]])

    def _give_to_root(self, needs: list[list[torch.Tensor]]) -> None:
        """Moves what is used outside of its blocks, on any rank."""
        parameters = list(self._root().parameters())
        owners = {id(parameter): set() for parameter in parameters}
        for number, members in enumerate(needs):
            for parameter in members:
                owners[id(parameter)].add(number)
        outside = self._uses.outside_of(list(owners.values()))
        for number in self._engine.agree_on_call_order(len(parameters), outside):
            for owner in owners[id(parameters[number])]:
                needs[owner] = [each for each in needs[owner] if each is not parameters[number]]
            needs[0].append(parameters[number])

    def _check_is_followed(self, module: nn.Module) -> None:
        if module in self._opaque:
            raise TypeError(
                f"release_parameters: {type(module).__name__} returns {self._opaque[module].__name__}, in which there "
                "are no tensors to tell when its backward begins"
            )

    def _before(self, module: nn.Module, _: Any) -> None:
        if not hasattr(self, "_engine"):
            return
        if not self._engine.knows_blocks:
            if self._root().training and torch.is_grad_enabled():
                self._called[module] = None
                if self._uses:
                    self._uses.enter(self._numbers[module])
        elif module is self._root() and not module.training:
            self._engine.wait_for_parameters()
        elif module in self._blocks:
            self._engine.before_block(self._blocks[module])

    def _after(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if not hasattr(self, "_engine") or not self._engine.reshards:
            return
        is_known = self._engine.knows_blocks
        if self._uses and not is_known:
            self._uses.leave(self._numbers[module])
        if (is_known and module not in self._blocks) or not self._root().training or not torch.is_grad_enabled():
            return
        tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            self._opaque[module] = type(outputs)
        if is_known:
            self._check_is_followed(module)
        self._engine.after_block(self._numbers[module], tensors)

    def _stop_looking(self, *_: Any) -> None:
        if hasattr(self, "_uses"):  # which a copy of the module has not
            self._uses.stop()


def _remove(handles: "weakref.WeakKeyDictionary[nn.Module, list]") -> None:
    for each in handles.values():
        for handle in each:
            handle.remove()


class _Surrounded:
    """A module whose calls are compiled, with what its hooks do, outside of that."""

    def __init__(self, module: nn.Module, hooks: BlockHooks) -> None:
        self._module, self._hooks, self._compiled = weakref.ref(module), hooks, module._compiled_call_impl
        module._compiled_call_impl = self

    def __call__(self, *arguments: Any, **kwargs: Any) -> Any:
        module = self._module()
        self._hooks._before(module, arguments)
        outputs = self._compiled(*arguments, **kwargs)
        self._hooks._after(module, arguments, outputs)
        return outputs

    def remove(self) -> None:
        if self.is_in_place():
            self._module()._compiled_call_impl = self._compiled

    def is_in_place(self) -> bool:
        module = self._module()
        return module is None or module._compiled_call_impl is self


def _has_blocks(module: nn.Module) -> bool:
    """Whether a module is a list of others, or has one."""
    lists = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return isinstance(module, lists) or any(isinstance(child, lists) and len(child) > 1 for child in module.children())
