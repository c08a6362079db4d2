# Made by scripts/stubs.
from __future__ import annotations
import collections.abc
import torch
import typing
__all__: list[str] = ['LoadReport', 'Reader', 'SafetensorsFile', 'latest_checkpoint', 'list_checkpoints', 'save_ranges', 'write_safetensors']
class LoadReport:
    """
    What was loaded, and which keys did not fit.
    """
    @property
    def missing(self) -> list[str]:
        """
        Asked for, but not in the checkpoint.
        """
    @property
    def step(self) -> int:
        """
        The step that was saved.
        """
    @property
    def unexpected(self) -> list[str]:
        """
        In a part of the checkpoint that was asked for, but not asked for.
        """
class Reader:
    """
    One complete checkpoint.
    """
    def __init__(self, arg0: str) -> None:
        ...
    def names_under(self, arg0: str) -> list[str]:
        ...
    def read(self, arg0: str) -> torch.Tensor:
        ...
    def value(self, arg0: str) -> str | None:
        ...
    def value_names_under(self, arg0: str) -> list[str]:
        ...
    @property
    def directory(self) -> str:
        ...
    @property
    def step(self) -> int:
        ...
    @property
    def tensors(self) -> dict[str, tuple[torch.dtype, list[int]]]:
        ...
    @property
    def values(self) -> dict[str, str]:
        ...
    @property
    def world_size(self) -> int:
        ...
class SafetensorsFile:
    def __init__(self, arg0: str) -> None:
        ...
    def read(self, arg0: str) -> torch.Tensor:
        ...
    @property
    def metadata(self) -> dict[str, str]:
        ...
    @property
    def names(self) -> list[str]:
        ...
def latest_checkpoint(arg0: str) -> str | None:
    ...
def list_checkpoints(arg0: str) -> list[int]:
    ...
def save_ranges(group: fairshard._core.comm.Group | None, root: str, step: typing.SupportsInt, ranges: collections.abc.Sequence[tuple[str, collections.abc.Sequence[typing.SupportsInt], typing.SupportsInt, torch.Tensor]], values: collections.abc.Mapping[str, str]) -> None:
    ...
def write_safetensors(path: str, tensors: collections.abc.Mapping[str, torch.Tensor], metadata: collections.abc.Mapping[str, str] = {}) -> None:
    ...
