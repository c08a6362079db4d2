"""The blocks of a model that is offloaded, and what they must not be used for."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Blocks = str | Sequence[str] | Callable[[nn.Module], Sequence[nn.Module]] | None

#: Containers that no model calls: it calls what is in them.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def list_blocks(model: nn.Module, blocks: Blocks) -> list[nn.Module]:
    """The modules that ``blocks`` means, in order. Raises ValueError that names what cannot be one."""
    if blocks is None:
        if not isinstance(model, nn.Sequential):
            raise ValueError(
                f"model is a {type(model).__name__}, not an nn.Sequential or a list of modules: name its blocks by the "
                "option blocks"
            )
        found = list(model)
    elif callable(blocks):
        found = list(blocks(model))
    elif isinstance(blocks, str):
        named = _named(model, blocks)
        found = list(named.children()) if isinstance(named, (nn.Sequential, *_CONTAINERS)) else [named]
    elif isinstance(blocks, Sequence):
        found = []
        for name in blocks:
            named = _named(model, name)
            found += list(named.children()) if isinstance(named, _CONTAINERS) else [named]
    else:
        raise ValueError(f"blocks is {blocks!r}, but must be a name, a list of names, or a function that lists modules")
    if not found:
        raise ValueError("the model has no blocks to offload")
    if blocks is not None:
        _check(model, found)
    return found


def _named(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"the model has no block '{name}'; its children are: {names}") from None


def _check(model: nn.Module, found: list[nn.Module]) -> None:
    names = {module: name for name, module in model.named_modules()}
    for block in found:
        if type(block).forward is nn.Module.forward or isinstance(block, _CONTAINERS):
            raise ValueError(
                f"the block '{names.get(block, '?')}' is a {type(block).__name__}, which has no forward: name the "
                "modules in it"
            )
    inner = {module for block in found for module in list(block.modules())[1:]}
    nested = next((block for block in found if block in inner), None)
    if nested is not None or len(set(found)) != len(found):
        raise ValueError(f"blocks overlap: a {type(nested or found[0]).__name__} is listed twice or within another")


def is_checkpointed() -> bool:
    """Whether we run within a torch.utils.checkpoint that is not reentrant, which keeps nothing for backward anyway."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(False) if top is not None else None
    return hooks is not None and any("checkpoint" in getattr(hook, "__module__", "") for hook in hooks)


def refuse_caches(name: str, values: Any) -> None:
    """Raises if a block is given a cache, to which it would add once in forward and once in backward."""
    for value in values:
        if "Cache" in type(value).__name__ and hasattr(value, "update"):
            raise RuntimeError(
                f"the block '{name}' was given a {type(value).__name__}: with checkpoint_activation a block runs a "
                "second time in backward, and would add to it twice. Call the model with use_cache=False"
            )
