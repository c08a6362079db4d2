"""What is compared: each function wraps a model for data-parallel training and gives its optimizer."""

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS

ADAMW = {"lr": 1e-4, "fused": True}
Trained = tuple[nn.Module, torch.optim.Optimizer]


def alone(model: nn.Module) -> Trained:
    """One rank, or ranks that do not communicate."""
    return model, torch.optim.AdamW(model.parameters(), **ADAMW)


def ddp(model: nn.Module) -> Trained:
    return DistributedDataParallel(model, gradient_as_bucket_view=True), torch.optim.AdamW(model.parameters(), **ADAMW)


def ddp_zero(model: nn.Module) -> Trained:
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return parallel, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAMW)


def replicated(model: nn.Module) -> Trained:
    return ShardedDataParallel(model), torch.optim.AdamW(model.parameters(), **ADAMW)


def _sharded(model: nn.Module, mode: str = "gradients", reduce_dtype: torch.dtype | None = None, **oss) -> Trained:
    optimizer = OSS(model.parameters(), torch.optim.AdamW, **oss, **ADAMW)
    return ShardedDataParallel(model, optimizer, mode=mode, reduce_dtype=reduce_dtype), optimizer


def optimizer(model: nn.Module) -> Trained:
    return _sharded(model, mode="optimizer")


def gradients(model: nn.Module) -> Trained:
    return _sharded(model)


def overlap(model: nn.Module) -> Trained:
    return _sharded(model, overlap_gather=True)


def bf16_gradients(model: nn.Module) -> Trained:
    return _sharded(model, reduce_dtype=torch.bfloat16)


def bf16_wire(model: nn.Module) -> Trained:
    return _sharded(model, reduce_dtype=torch.bfloat16, gather_dtype=torch.bfloat16)


def bf16_overlap(model: nn.Module) -> Trained:
    return _sharded(model, reduce_dtype=torch.bfloat16, gather_dtype=torch.bfloat16, overlap_gather=True)


SYSTEMS = {
    "ddp": ddp,
    "ddp+zero": ddp_zero,
    "ours replicated": replicated,
    "ours optimizer": optimizer,
    "ours gradients": gradients,
    "ours overlap": overlap,
    "ours bf16 grads": bf16_gradients,
    "ours bf16 wire": bf16_wire,
    "ours bf16 overlap": bf16_overlap,
    "alone": alone,
}
