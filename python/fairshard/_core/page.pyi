# Made by scripts/stubs.
from __future__ import annotations
import collections.abc
import torch
import typing
__all__: list[str] = ['OptimizerWorker', 'Pager', 'checked_device', 'cut_batch', 'join_batches', 'slice_blocks']
class OptimizerWorker:
    def __init__(self, arg0: Pager, arg1: typing.SupportsInt) -> None:
        ...
    def busy_s(self) -> float:
        ...
    def elements(self) -> int:
        ...
    def plan(self, rule: str, options: dict, parameters: collections.abc.Sequence[torch.Tensor], get: collections.abc.Callable[[torch.Tensor, str], torch.Tensor | None], set: collections.abc.Callable[[torch.Tensor, str, torch.Tensor], None]) -> None:
        """
        Options are those of a parameter group of the optimizer.
        """
    def set_stepping(self, arg0: bool) -> None:
        ...
    def wait(self) -> None:
        ...
    def wait_for_plans(self) -> None:
        ...
    def without_plan(self) -> list[torch.Tensor]:
        """
        Parameters that require a gradient and have no plan.
        """
class Pager:
    def __init__(self, slices: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]], common: collections.abc.Sequence[torch.Tensor], *, device: torch.device, param_dtype: torch.dtype | None, prefetch: typing.SupportsInt, device_budget_bytes: typing.SupportsInt | None, host_budget_bytes: typing.SupportsInt | None, spill_dir: str, record_spans: bool, offload_activations: bool) -> None:
        ...
    def abandon(self) -> None:
        ...
    def begin(self, arg0: bool) -> None:
        ...
    def cross(self, to: typing.SupportsInt, values: collections.abc.Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ...
    def report(self) -> dict:
        ...
    def set_after_backward(self, arg0: collections.abc.Callable[[], None]) -> None:
        ...
    def take_spans(self) -> list[tuple[str, str, float, float]]:
        ...
    @property
    def current(self) -> int:
        ...
def checked_device(arg0: torch.device) -> torch.device:
    """
    The device with its number, if it is there.
    """
def cut_batch(tensors: collections.abc.Sequence[torch.Tensor], num_microbatches: typing.SupportsInt) -> list[list[torch.Tensor]]:
    ...
def join_batches(parts: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    ...
def slice_blocks(blocks: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]], rest: collections.abc.Sequence[torch.Tensor], num_slices: typing.SupportsInt | None) -> tuple[list[int], list[list[torch.Tensor]], list[torch.Tensor]]:
    """
    The slice of each block, the parameters of each slice, and those that slices have in common.
    """
