"""What integrations into other frameworks have in common: options for several takers, optimizers, scalers."""

import inspect
from typing import Any

import torch

from fairshard.optim import OSS, ShardedGradScaler

#: What an integration knows itself.
_ITS_OWN = {"self", "params", "optim", "group", "module", "sharded_optimizer", "process_group", "device_ids"}
_ITS_OWN |= {"model", "nprocs_per_node", "optimizer", "kwargs", "default"}


def split(options: dict[str, Any], *takers: type) -> list[dict[str, Any]]:
    """For each taker the options that it has by name. One that nobody has is refused."""
    names = [{*inspect.signature(taker.__init__).parameters} - _ITS_OWN for taker in takers]
    unknown = options.keys() - set().union(*names) - {"find_unused_parameters"}  # they are found, whatever is said
    if unknown:
        raise TypeError(f"no option of {', '.join(taker.__name__ for taker in takers)}: {', '.join(sorted(unknown))}")
    return [{name: value for name, value in options.items() if name in known} for known in names]


def sharded(optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> torch.optim.Optimizer:
    """An OSS in place of the optimizer, unless it is one, wraps one, or has no parameters to shard."""
    has_parameters = any(p.requires_grad for group in optimizer.param_groups for p in group["params"])
    if hasattr(optimizer, "sharded_step") or not has_parameters:
        return optimizer
    return OSS.from_optimizer(optimizer, **options)


def shard_scaler(owner: Any) -> None:
    """Has the owner of a gradient scaler, if it has one, use a ShardedGradScaler with the same scale."""
    scaler = getattr(owner, "scaler", None)
    if isinstance(scaler, torch.amp.GradScaler) and not isinstance(scaler, ShardedGradScaler):
        owner.scaler = ShardedGradScaler(
            scaler.get_scale(),
            scaler.get_growth_factor(),
            scaler.get_backoff_factor(),
            scaler.get_growth_interval(),
            scaler.is_enabled(),
            device=scaler._device,
        )
