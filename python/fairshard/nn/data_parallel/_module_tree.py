"""A module's parameters and buffers, listed without a walk through the modules at every forward."""

import torch
from torch import nn


class ModuleTree:
    """All modules under ``root``, each once."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._modules = list(root.modules())
        self._seen = self._contents()

    def has_changed(self) -> bool:
        """Whether modules or parameters were added, removed or replaced since the last time that this was asked."""
        contents = self._contents()
        if contents == self._seen:
            return False
        self._modules = list(self._root.modules())
        self._seen = self._contents()
        return True

    def parameters(self) -> tuple[list[str], list[torch.Tensor]]:
        """Names and tensors."""
        named = list(self._root.named_parameters())
        return [name for name, _ in named], [parameter for _, parameter in named]

    def buffers(self) -> list[torch.Tensor]:
        """Those that there are now."""
        return [buffer for module in self._modules for buffer in module._buffers.values() if buffer is not None]

    def _contents(self) -> list[tuple]:
        return [(*map(id, m._parameters.values()), *map(id, m._modules.values())) for m in self._modules]
