# Made by scripts/stubs.
from __future__ import annotations
import collections.abc
import fairshard._core.comm
import fairshard._core.shard
import torch
import typing
__all__: list[str] = ['GainMeter', 'gradient_memory', 'mark_scaled_backward', 'unscale']
class GainMeter:
    def __init__(self, group: fairshard._core.comm.Group | None, parameter_groups: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]], *, accumulation: typing.SupportsInt, is_scaled_loss: bool, scale: typing.SupportsFloat | None, smoothing: typing.SupportsFloat | None, debias: bool) -> None:
        ...
    def add_group(self, arg0: collections.abc.Sequence[torch.Tensor]) -> None:
        ...
    def count_step(self) -> None:
        ...
    def effective_steps(self) -> torch.Tensor:
        ...
    def forget(self) -> None:
        ...
    def gain(self) -> torch.Tensor:
        ...
    def gains(self) -> torch.Tensor:
        ...
    def load(self, arg0: torch.Tensor, arg1: torch.Tensor) -> None:
        ...
    def measure_from(self, arg0: fairshard._core.shard.ShardedStep) -> None:
        """
        Measures what this rank owns of sharded parameters, instead of .grad.
        """
    def require_measurement(self) -> None:
        ...
    def set_scale(self, arg0: typing.SupportsFloat, arg1: bool) -> None:
        ...
    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        ...
    def unhook(self) -> None:
        ...
    @property
    def accumulation(self) -> int:
        ...
    @accumulation.setter
    def accumulation(self, arg1: typing.SupportsInt) -> None:
        ...
    @property
    def scale(self) -> float:
        ...
    @property
    def smoothing(self) -> float:
        ...
def gradient_memory(arg0: collections.abc.Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """
    Gradients, or the values of sparse ones.
    """
def mark_scaled_backward(scaler: typing.SupportsInt, scale: torch.Tensor) -> None:
    """
    To be called in a hook: this backward is that of a loss which the scaler has scaled.
    """
def unscale(group: fairshard._core.comm.Group, gradients: collections.abc.Sequence[torch.Tensor], inverse_scale: torch.Tensor, device: torch.device) -> torch.Tensor:
    """
    Unscales gradients in place; tells whether any rank has one that is not finite.
    """
