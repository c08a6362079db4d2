"""What torch.compile leaves alone, and where it has compiled parts of a model."""

from collections.abc import Iterator

import torch
from torch import nn


def keep_from_compilers(owner: type, *names: str) -> None:
    """Has torch.compile call methods of a class as they are, once.

    Not by a decorator where they are defined: that would import a compiler, which takes a second, with the package.
    """
    for name in names:
        method = getattr(owner, name)
        if not hasattr(method, "_torchdynamo_disable"):
            setattr(owner, name, torch.compiler.disable(method))


def is_compiled(module: nn.Module) -> bool:
    """Whether a module's calls are compiled: by ``module.compile()``, or as what ``torch.compile(module)`` returns."""
    return module._compiled_call_impl is not None or isinstance(getattr(module, "_orig_mod", None), nn.Module)


def outside_of_compiled(root: nn.Module) -> Iterator[nn.Module]:
    """A module and those within it, each once, but not those within one that is compiled."""
    left, seen = [root], set()
    while left:
        module = left.pop(0)
        if module not in seen:
            seen.add(module)
            yield module
            left = ([] if is_compiled(module) else list(module.children())) + left
