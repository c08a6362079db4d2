"""Where an optimizer's gradients lie."""

import torch

from fairshard._core import scale as _scale


def gradient_memory(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All memory of this rank that has gradients of the optimizer, which may be an OSS."""
    if hasattr(optimizer, "sharded_step"):
        return optimizer.sharded_step.gradient_memory()
    return _scale.gradient_memory([p for group in optimizer.param_groups for p in group["params"]])
