"""Nodes that train apart cannot have an optimizer whose state is sharded over all of them."""

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fairshard.optim import OSS


def refuse_oss(optimizer: Any) -> None:
    """Raises if it is an OSS."""
    if isinstance(optimizer, OSS):
        raise ValueError(
            "SlowMoDistributedDataParallel does not work with an OSS: it has parts of the parameters stepped by other "
            "ranks and gathers them in every step, so nodes would never train apart. Use its base optimizer by itself"
        )


def watch_steps(module: nn.Module, owner: Any) -> None:
    """As long as ``owner`` lives, an OSS that has parameters of the module is refused before it steps."""
    watched = weakref.ref(module)

    def look_at(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if isinstance(optimizer, OSS) and (own := watched()) is not None:
            known = {id(parameter) for parameter in own.parameters()}
            if any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
                refuse_oss(optimizer)

    weakref.finalize(owner, register_optimizer_step_pre_hook(look_at).remove)
