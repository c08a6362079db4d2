"""ShardedDataParallel: data parallelism whose gradients are reduced in backward, to their owners only."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fairshard import comm
from fairshard._core import shard as _shard
from fairshard.nn.data_parallel._block_hooks import BlockHooks
from fairshard.optim.oss import PART_ATTRIBUTE

__all__ = ["ShardedDataParallel"]

_Action = _shard.Join.Action


class ShardedDataParallel(nn.Module):
    """Wraps a module so that every backward reduces its gradients over the ranks.

    With an :class:`~fairshard.optim.OSS` over the parameters, each rank gets only the gradients of what it
    owns, and ``.grad`` stays empty (ZeRO-2); without one, ``.grad`` is averaged on all ranks, as
    torch's DistributedDataParallel does it. The OSS may be made before or after the wrapping: it is
    found by the parameters, at the first forward.

    Hooks and communication are C++ and run without the GIL. Construction and every backward are
    collective; attributes that are not found here are the module's.

    Example::

        model = ShardedDataParallel(model)  # before or after the OSS
        optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=1e-3)
        loss_fn(model(data), target).backward()  # returns with reduced gradients
        optimizer.step()

    Args:
        module: the module.
        sharded_optimizer: the OSS, or several; accepted for FairScale's sake, see above.
        process_group: the ranks (default: the world). Must be that of the OSS.
        broadcast_buffers: rank 0's buffers go to all ranks before a forward in training.
        sync_models_at_startup: rank 0's parameters and buffers go to all ranks now.
        reduce_buffer_size: elements in a bucket where there is no OSS, which else decides it (default: 25 MiB of
            float32).
        auto_refresh_trainable: accepted; frozen and unfrozen parameters are always followed.
        reduce_fp16: the same as ``reduce_dtype=torch.float16``.
        warn_on_trainable_params_changed: accepted; changes cost nothing, so nothing is said.
        device_ids: accepted; the module stays where it is.
        mode: "gradients" (ZeRO-2) or "optimizer" (ZeRO-1: whole gradients in ``.grad``), with an OSS.
        reduce_dtype: the dtype in which gradients travel. Sums are taken in float32 over Gloo.
    """

    def __init__(
        self,
        module: nn.Module,
        sharded_optimizer: Any = None,
        process_group: "dist.ProcessGroup | None" = None,
        broadcast_buffers: bool = True,
        sync_models_at_startup: bool = True,
        reduce_buffer_size: int = 25 * 2**18,
        auto_refresh_trainable: bool = True,
        reduce_fp16: bool = False,
        warn_on_trainable_params_changed: bool = True,
        device_ids: Any = None,
        *,
        mode: str = "gradients",
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("gradients", "optimizer"):
            raise ValueError(f"mode is {mode!r}, but must be 'gradients' or 'optimizer'")
        self.module = module
        self._comm = comm.Group(process_group)
        #: Where parameters are gathered while the next forward begins, its buffers do not wait for them.
        self._buffer_comm: Any = self._comm
        self._broadcast_buffers = broadcast_buffers
        self._bucket_bytes = 4 * reduce_buffer_size
        self._mode = mode
        self._reduce_dtype = torch.float16 if reduce_fp16 else reduce_dtype
        self._named = list(module.named_parameters())
        self._parts: list[_shard.FlatParameters] = []
        self._released: list[_shard.ReleasedValues] = []
        self._own_part: Any = None
        self._reducer: Any = None
        self._places: dict = {}
        self._block_hooks: BlockHooks | None = None
        self._join: Any = None
        self._sync = True
        # An OffloadModel's gradients are on the device when hooks see them; it says when they are on the host.
        self._is_offloaded = hasattr(module, "call_after_backward")
        if self._is_offloaded:
            reduce = weakref.WeakMethod(self._reduce_offloaded)
            module.call_after_backward(lambda: (method := reduce()) and method())
        if not self._named:
            raise ValueError(f"{type(module).__name__} has no parameters to train")
        names, tensors = zip(*self._named, strict=True)
        _shard.check_same_parameters(self._comm, names, tensors)
        if sync_models_at_startup:
            comm.broadcast_all(self._comm, [*tensors, *module.buffers()], 0)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        self._find_parts()
        is_by_block = self._block_hooks is not None and self._block_hooks.are_assigned
        for released in self._released:
            released.begin_forward(self.module.training, is_by_block)
        self._reducer.prepare()
        if not is_by_block:
            self._wait_for_parameters()
        if self._broadcast_buffers and self.training and self._sync and next(self.module.buffers(), None) is not None:
            root = self._join.announce(_Action.FORWARD).leader if self._join is not None else 0
            comm.broadcast_all(self._buffer_comm, [*self.module.buffers()], root)
        outputs = self.module(*inputs, **kwargs)
        if self._block_hooks is not None and not is_by_block:
            self._block_hooks.assign(self._places)
        for released in self._released:
            released.end_forward()
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward reduces nothing and gradients add up in ``.grad``; the next one reduces the sum."""
        before = self._sync
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(before)

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Around a training loop of which ranks may do different numbers of rounds.

        A rank whose loop has ended takes part in what the others do, with gradients of zero (averages are
        still taken over all ranks), until all have ended; then all have one model. Steps, clipping and
        reductions may stand in the loop; other collectives may not.
        """
        self._find_parts()
        self._set_join(_shard.Join(self._comm))
        try:
            yield
            while self._follow_others():
                pass
            leader = self._join.last.leader
        finally:
            self._set_join(None)
        if leader >= 0:
            comm.broadcast_all(self._comm, [*self.module.buffers()], leader)
            if self._own_part is not None:  # ranks that joined early have not stepped since
                self._own_part.broadcast(leader)

    def reduce(self) -> None:
        """Reduces what is in ``.grad`` now. Backward does this by itself, unless under ``no_sync``."""
        self._find_parts()
        self._reducer.reduce()

    def refresh_trainable(self) -> None:
        """Does nothing: frozen and unfrozen parameters are followed by themselves."""

    def sync_buffers(self, blocking: bool = False) -> None:
        """Makes all ranks' buffers those of rank 0. Always blocks."""
        comm.broadcast_all(self._comm, [*self.module.buffers()], 0)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Drops all gradients, also those that were reduced into this rank's share."""
        self.module.zero_grad(set_to_none)
        for part in self._parts:
            part.clear_gradients()

    def to(self, *arguments: Any, **kwargs: Any) -> "ShardedDataParallel":
        """Changes the dtype, at any time. The device must stay what it is: move the module before it is wrapped."""
        device, *_ = torch._C._nn._parse_to(*arguments, **kwargs)
        current = self._named[0][1].device
        if device is not None and (device.type, device.index or 0) != (current.type, current.index or 0):
            raise RuntimeError(
                f"ShardedDataParallel cannot move from {current} to {device}: the parameters are sharded where they "
                "are. Move the module before it is wrapped"
            )
        self._wait_for_parameters()
        return super().to(*arguments, **kwargs)

    def state_dict(self, *arguments: Any, **kwargs: Any) -> dict:
        """The module's own, under its own names."""
        self._wait_for_parameters()
        return self.module.state_dict(*arguments, **kwargs)

    def load_state_dict(self, *arguments: Any, **kwargs: Any) -> Any:
        """The module's own."""
        self._wait_for_parameters()
        return self.module.load_state_dict(*arguments, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _wait_for_parameters(self) -> None:
        for part in self._parts:
            part.wait_for_values()

    def _set_sync(self, is_on: bool) -> None:
        self._sync = is_on
        if self._reducer is not None:
            self._reducer.sync = is_on and not self._is_offloaded

    def _reduce_offloaded(self) -> None:
        if self._sync and self._reducer is not None:
            self._reducer.reduce()

    def _set_join(self, join: Any) -> None:
        self._join = join
        for part in self._parts:
            part.join = join
        for number, optimizer in enumerate(self._optimizers()):
            optimizer._join_number = number

    def _optimizers(self) -> list:
        """The OSS's of the parts, each once."""
        found = [part.optimizer() for part in self._parts if part is not self._own_part]
        return list({id(optimizer): optimizer for optimizer in found if optimizer is not None}.values())

    def _follow_others(self) -> bool:
        """Does this rank's share of what ranks that still have inputs do next. Returns whether there was anything."""
        said = self._join.follow()
        if said.action == _Action.NOTHING:
            return False
        if said.action == _Action.FORWARD:
            comm.broadcast_all(self._buffer_comm, [*self.module.buffers()], said.leader)
        elif said.action == _Action.REDUCE:
            self._reducer.reduce()
        else:
            self._optimizers()[int(said.details[0])]._follow(said)
        return True

    def _take_new_parameters(self) -> None:
        """Takes up parameters that the module got since it was wrapped. Only without an OSS."""
        named = list(self.module.named_parameters())
        if len(named) != len(self._named):
            self._named, self._own_part = named, None

    def _find_parts(self) -> None:
        """Takes up what the OSS has sharded since the last time, or all parameters if there is no OSS."""
        parts, missing = {}, None
        for name, parameter in self._named:
            part = getattr(parameter, PART_ATTRIBUTE, None)
            if part is not None:
                parts[part] = None
            elif missing is None and parameter.requires_grad and parameter.numel() > 0:
                missing = name
        if not parts:
            if self._own_part is None:
                names, tensors = zip(*self._named, strict=True)
                self._own_part = _shard.FlatParameters(self._comm, names, tensors, [], self._bucket_bytes)
            parts = {self._own_part: None}
        elif missing is not None:
            raise RuntimeError(
                f"parameter '{missing}' requires a gradient, but is in no OSS: give it to one or freeze it"
            )
        if list(parts) != self._parts:
            self._take_up(list(parts))

    def _take_up(self, parts: list) -> None:
        is_sharded = self._own_part not in parts and self._mode == "gradients"
        self._own_part = None if self._own_part not in parts else self._own_part
        self._parts = parts
        self._released = [part.released for part in parts if part.released is not None]
        if self._released and self._is_offloaded:
            raise ValueError("release_parameters: an OffloadModel has its parameters in the host's memory already")
        self._reducer = _shard.GradReducer(parts, is_sharded, self._reduce_dtype)
        self._reducer.sync = self._sync and not self._is_offloaded
        # Errors name parameters as the module does.
        names = {parameter: name for name, parameter in self._named}
        places = {}
        for part in parts:
            for number, (_, tensor, _) in enumerate(part.parameters):
                places[tensor] = part, number
                if tensor in names:
                    part.rename(number, names[tensor])
        self._places = places
        if self._block_hooks is not None:
            self._block_hooks.forget()
        is_overlapped = any(optimizer.overlap_gather for optimizer in self._optimizers())
        if is_overlapped and self._buffer_comm is self._comm and next(self.module.buffers(), None) is not None:
            self._buffer_comm = self._comm.duplicate()
        if self._block_hooks is None and (self._released or is_overlapped):
            self._block_hooks = BlockHooks(self.module)
