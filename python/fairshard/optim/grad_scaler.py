"""ShardedGradScaler: torch's gradient scaler, with one decision for all ranks."""

import itertools
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist

from fairshard import comm
from fairshard._core import scale as _scale
from fairshard.optim._gradients import gradient_memory

__all__ = ["ShardedGradScaler"]

_counter = itertools.count(1)
#: Scalers by the numbers under which gradients know them.
_scalers: "weakref.WeakValueDictionary[int, ShardedGradScaler]" = weakref.WeakValueDictionary()


def scaler_of(number: int) -> "ShardedGradScaler | None":
    """The scaler whose scaled loss gave gradients, by the number that they have from it."""
    return _scalers.get(number)


class ShardedGradScaler(torch.amp.GradScaler):
    """A GradScaler for optimizers whose gradients are spread over ranks, and for plain ones.

    If a gradient is infinite or not a number on any rank, all ranks skip the step, so that scales and
    parameters stay the same everywhere. ``unscale_`` and ``step`` are collective; ranks that have no
    gradients take part.

    Example::

        scaler = ShardedGradScaler()
        with torch.autocast("cuda"):
            loss = loss_fn(model(data), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Args:
        init_scale: what losses are multiplied by at first.
        growth_factor: what the scale is multiplied by after ``growth_interval`` steps without an infinity.
        backoff_factor: what it is multiplied by after a step with one.
        growth_interval: see ``growth_factor``.
        enabled: if false, all of it does nothing but step.
        process_group: the ranks that decide together (default: the world). An OSS brings its own.
        device: "cuda" or "cpu" (default: "cuda" if there is one).
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: "dist.ProcessGroup | None" = None,
        *,
        device: str | None = None,
    ) -> None:
        if init_scale <= 0:
            raise ValueError(f"init_scale is {init_scale}, but must be above 0")
        if growth_interval < 1:
            raise ValueError(f"growth_interval is {growth_interval}, but must be at least 1")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._process_group = process_group
        self._comm: comm.Group | None = None
        self._number = next(_counter)
        _scalers[self._number] = self

    def scale(self, outputs: Any) -> Any:
        """Multiplies a loss, or losses, by the scale. Their backward marks its gradients as scaled."""
        scaled = super().scale(outputs)
        if self._enabled:
            scaled = list(scaled) if not isinstance(scaled, (torch.Tensor, list, tuple)) else scaled
            for tensor in _tensors(scaled):
                if tensor.requires_grad:
                    tensor.register_hook(self._mark)
        return scaled

    def _mark(self, _: torch.Tensor) -> None:
        _scale.mark_scaled_backward(self._number, self._scale)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        gradients = gradient_memory(optimizer)
        if not allow_fp16 and any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("Attempting to unscale FP16 gradients.")
        group = getattr(optimizer, "group", None)
        if not isinstance(group, comm.Group):
            group = self._group()
        device = gradients[0].device if gradients else inv_scale.device
        if hasattr(optimizer, "sharded_step"):
            optimizer.sharded_step.scaled_by = 0
        return {device: _scale.unscale(group, gradients, inv_scale, device)}

    def _group(self) -> comm.Group:
        if self._comm is None:
            self._comm = comm.Group(self._process_group)
        return self._comm

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        return {**state, "_comm": None, "_process_group": None}

    def step_scaled(self, optimizer: torch.optim.Optimizer, **kwargs: Any) -> Any:
        """What a call of ``optimizer.step()`` on gradients that are still scaled becomes: with one warning."""
        if not getattr(self, "_has_warned", False):
            self._has_warned = True
            warnings.warn(
                "optimizer.step() was called on gradients of a scaled loss. They are unscaled and checked now, and the "
                "scale is updated; write scaler.step(optimizer) and scaler.update() instead",
                stacklevel=4,
            )
        result = self.step(optimizer, **kwargs)
        self.update()
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)]
