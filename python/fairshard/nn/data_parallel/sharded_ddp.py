"""ShardedDataParallel: data parallelism whose gradients are reduced in backward, to their owners only."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fairshard import comm
from fairshard._core import shard as _shard
from fairshard.optim.oss import PART_ATTRIBUTE

__all__ = ["ShardedDataParallel"]


class ShardedDataParallel(nn.Module):
    """Wraps a module so that every backward reduces its gradients over the ranks.

    With an :class:`~fairshard.optim.OSS` over the parameters, each rank gets only the gradients of what it
    owns, and ``.grad`` stays empty (ZeRO-2); without one, ``.grad`` is averaged on all ranks, as
    torch's DistributedDataParallel does it. The OSS may be made before or after the wrapping: it is
    found by the parameters, at the first forward.

    Hooks and communication are C++ and run without the GIL. Construction and every backward are
    collective; attributes that are not found here are the module's.

    Args:
        module: the module.
        sharded_optimizer: the OSS, or several; accepted for FairScale's sake, see above.
        process_group: the ranks (default: the world). Must be that of the OSS.
        broadcast_buffers: rank 0's buffers go to all ranks before a forward in training.
        sync_models_at_startup: rank 0's parameters and buffers go to all ranks now.
        reduce_buffer_size: elements in a bucket where there is no OSS, which else decides it.
        auto_refresh_trainable: accepted; frozen and unfrozen parameters are always followed.
        reduce_fp16: not supported.
        warn_on_trainable_params_changed: accepted; changes cost nothing, so nothing is said.
        device_ids: accepted; the module stays where it is.
        mode: "gradients" (ZeRO-2) or "optimizer" (ZeRO-1: whole gradients in ``.grad``), with an OSS.
    """

    def __init__(
        self,
        module: nn.Module,
        sharded_optimizer: Any = None,
        process_group: "dist.ProcessGroup | None" = None,
        broadcast_buffers: bool = True,
        sync_models_at_startup: bool = True,
        reduce_buffer_size: int = 2**23,
        auto_refresh_trainable: bool = True,
        reduce_fp16: bool = False,
        warn_on_trainable_params_changed: bool = True,
        device_ids: Any = None,
        *,
        mode: str = "gradients",
    ) -> None:
        super().__init__()
        if reduce_fp16:
            raise NotImplementedError("ShardedDataParallel: reduce_fp16 is not supported")
        if mode not in ("gradients", "optimizer"):
            raise ValueError(f"mode is {mode!r}, but must be 'gradients' or 'optimizer'")
        self.module = module
        self._comm = comm.Group(process_group)
        self._broadcast_buffers = broadcast_buffers
        self._bucket_bytes = 4 * reduce_buffer_size
        self._mode = mode
        self._reducers: dict[Any, _shard.GradReducer] = {}
        self._own_part: Any = None
        self._sync = True
        if next(module.parameters(), None) is None:
            raise ValueError(f"{type(module).__name__} has no parameters to train")
        names, tensors = zip(*module.named_parameters(), strict=True)
        _shard.check_same_parameters(self._comm, names, tensors)
        if sync_models_at_startup:
            self._broadcast([*tensors, *module.buffers()])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        self._find_parts()
        for parameter in self.module.parameters():
            if parameter.grad is not None and parameter.grad.requires_grad:
                raise RuntimeError("a gradient that itself requires a gradient (create_graph) cannot be reduced")
        for reducer in self._reducers.values():
            reducer.prepare()
        if self._broadcast_buffers and self.training and self._sync:
            self.sync_buffers(blocking=True)
        return self.module(*inputs, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward reduces nothing and gradients add up in ``.grad``; the next one reduces the sum."""
        before = self._sync
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(before)

    def reduce(self) -> None:
        """Reduces what is in ``.grad`` now. Backward does this by itself, unless under ``no_sync``."""
        self._find_parts()
        for reducer in self._reducers.values():
            reducer.reduce()

    def refresh_trainable(self) -> None:
        """Does nothing: frozen and unfrozen parameters are followed by themselves."""

    def sync_buffers(self, blocking: bool = False) -> None:
        """Makes all ranks' buffers those of rank 0. Always blocks."""
        self._broadcast(list(self.module.buffers()))

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Drops all gradients, also those that were reduced into this rank's share."""
        self.module.zero_grad(set_to_none)
        for part in self._reducers:
            part.clear_gradients()

    def state_dict(self, *arguments: Any, **kwargs: Any) -> dict:
        """The module's own, under its own names."""
        for part in self._reducers:
            part.wait_for_values()
        return self.module.state_dict(*arguments, **kwargs)

    def load_state_dict(self, *arguments: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.module.load_state_dict(*arguments, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _set_sync(self, is_on: bool) -> None:
        self._sync = is_on
        for reducer in self._reducers.values():
            reducer.sync = is_on

    def _find_parts(self) -> None:
        """Makes reducers for what the OSS has sharded since the last time, or for all if there is no OSS."""
        parts, missing = {}, []
        for name, parameter in self.module.named_parameters():
            part = getattr(parameter, PART_ATTRIBUTE, None)
            if part is not None:
                parts[part] = None
            elif parameter.requires_grad and parameter.numel() > 0:
                missing.append(name)
        if not parts:
            if self._own_part is None:
                names, tensors = zip(*self.module.named_parameters(), strict=True)
                self._own_part = _shard.FlatParameters(self._comm, names, tensors, [], self._bucket_bytes)
            parts = {self._own_part: None}
        elif missing:
            raise RuntimeError(
                f"parameter '{missing[0]}' requires a gradient, but is in no OSS: give it to one or freeze it"
            )
        if parts.keys() != self._reducers.keys():
            is_sharded = self._own_part is None and self._mode == "gradients"
            self._reducers = {part: self._reducers.get(part) or _shard.GradReducer(part, is_sharded) for part in parts}
            self._rename(parts)
            self._set_sync(self._sync)

    def _rename(self, parts: dict) -> None:
        """Errors name parameters as the module does."""
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        for part in parts:
            for number, (_, tensor, _) in enumerate(part.parameters):
                if tensor in names:
                    part.rename(number, names[tensor])

    @torch.no_grad()
    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        copies = [tensor.detach().contiguous() for tensor in tensors]
        works = [comm.broadcast(self._comm, copy, 0) for copy in copies]
        for tensor, copy, work in zip(tensors, copies, works, strict=True):
            work.wait()
            if copy.data_ptr() != tensor.data_ptr():
                tensor.copy_(copy)
