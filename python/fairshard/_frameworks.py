"""What integrations into other frameworks have in common: options for several takers, optimizers, scalers."""

import inspect
from typing import Any

import torch

from fairshard import comm
from fairshard.optim import OSS, ShardedGradScaler

#: What an integration knows itself.
_ITS_OWN = {"self", "params", "optim", "group", "module", "sharded_optimizer", "process_group", "device_ids"}
_ITS_OWN |= {"model", "nprocs_per_node", "optimizer", "kwargs", "default"}
_ITS_OWN |= {"model_averaging_period"}  # for Lightning's post-local SGD; ours is SlowMoStrategy


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


class Meter:
    """What sharding costs this rank: waiting and bytes since they were last asked for, and an AdaScale's gain."""

    def __init__(self) -> None:
        self._group: comm.Group | None = None
        self._before = (0.0, 0)

    def take(self, optimizers: list[torch.optim.Optimizer]) -> dict[str, float]:
        """By the names under which it is logged; local. The first call counts from the group's beginning."""
        self._group = self._group or comm.Group()
        now = (self._group.waited_s, self._group.sent_bytes)
        waited, sent = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        found = {"fairshard/waited_s": waited, "fairshard/sent_bytes": float(sent)}
        for optimizer in optimizers:
            scaled = next(
                (each for each in (optimizer, getattr(optimizer, "optim", None)) if hasattr(each, "gain")), None
            )
            if scaled is not None:
                found["fairshard/gain"] = float(scaled.gain())
        return found
