"""Nodes that train apart take an OSS over the ranks of a node, and none that brings nodes together in every step."""

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fairshard.optim import OSS


def check_oss(optimizer: Any, is_sharded: bool) -> None:
    """Raises unless the optimizer is an OSS where the wrapped module has found one, and is none elsewhere."""
    if isinstance(optimizer, OSS) and not is_sharded:
        raise ValueError(
            "SlowMoDistributedDataParallel was made before this OSS, which it would have to follow: make the OSS "
            "first, over the ranks of this node"
        )
    if is_sharded and not isinstance(optimizer, OSS):
        raise ValueError(
            f"the module's parameters belong to an OSS, but perform_slowmo() got a {type(optimizer).__name__}"
        )


def watch_steps(module: nn.Module, owner: Any) -> None:
    """As long as ``owner`` lives, an OSS that has got parameters of the module since is refused before it steps."""
    watched = weakref.ref(module)

    def look_at(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if isinstance(optimizer, OSS) and (own := watched()) is not None:
            known = {id(parameter) for parameter in own.parameters()}
            if any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
                check_oss(optimizer, is_sharded=False)

    weakref.finalize(owner, register_optimizer_step_pre_hook(look_at).remove)
