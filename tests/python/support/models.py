"""Small models and data that differ by rank, for tests of training."""

import torch
from torch import nn

from support.ranks import device


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 33), nn.Tanh(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 5))
    return model.to(device())


def inputs(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(6, 10, generator=generator).to(device())


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.pow(2).mean()


def exact(optim: type[torch.optim.Optimizer]) -> dict[str, float]:
    """Tolerances for what is the same bit for bit.

    But on a GPU the order in which norms of whole tensors are summed depends on where in memory these begin.
    """
    is_rounded = optim is torch.optim.Adafactor and device().type == "cuda"
    return {} if is_rounded else {"rtol": 0, "atol": 0}


def values(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]
