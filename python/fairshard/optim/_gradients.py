"""Where an optimizer's gradients lie."""

import torch


def gradient_memory(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All memory of this rank that has gradients of the optimizer, which may be an OSS."""
    if hasattr(optimizer, "sharded_step"):
        return optimizer.sharded_step.gradient_memory()
    result = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                if parameter.grad.dtype is torch.float16:
                    parameter.grad = parameter.grad.coalesce()
                result.append(parameter.grad._values())
            else:
                result.append(parameter.grad)
    return result
