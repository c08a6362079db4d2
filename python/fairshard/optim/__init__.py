"""Optimizers whose state is sharded over ranks, learning rates that follow the batch, and a gradient scaler."""

from fairshard.optim.adascale import AdaScale, AdaScaleWrapper
from fairshard.optim.grad_scaler import ShardedGradScaler
from fairshard.optim.oss import OSS

__all__ = ["OSS", "AdaScale", "AdaScaleWrapper", "ShardedGradScaler"]
