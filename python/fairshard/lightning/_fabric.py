"""FabricShardedStrategy: Lightning's Fabric with a ShardedDataParallel and an OSS for each optimizer."""

import contextlib
from typing import Any

import torch
from torch import nn

from fairshard._frameworks import shard_scaler, sharded, split
from fairshard.lightning._names import FabricDDPStrategy
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

__all__ = ["FabricShardedStrategy"]


class FabricShardedStrategy(FabricDDPStrategy):
    """Sets up what Fabric's ``ddp`` does, with optimizer state and gradients sharded over the ranks.

    Example::

        import fairshard.lightning

        fabric = Fabric(strategy="ddp_sharded")  # or an object of this class, with options
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
        fabric.backward(loss_fn(model(data), target))
        optimizer.step()

    Args:
        **options: those of :class:`~fairshard.optim.OSS`, of
            :class:`~fairshard.nn.data_parallel.ShardedDataParallel` and of Fabric's DDPStrategy, by their names.
    """

    def __init__(self, **options: Any) -> None:
        self._of_optimizers, self._of_model, own = split(options, OSS, ShardedDataParallel, FabricDDPStrategy)
        super().__init__(**own)
        self._backward_sync_control = _SyncControl()

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Wraps a model."""
        shard_scaler(self.precision)
        return ShardedDataParallel(module, **self._of_model)

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Shards an optimizer; its schedulers go on."""
        return sharded(optimizer, self._of_optimizers)


class _SyncControl:
    """What ``fabric.no_backward_sync`` uses."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> contextlib.AbstractContextManager:
        return module.no_sync() if enabled else contextlib.nullcontext()
