"""ShardedDataParallel: data parallelism whose gradients are reduced in backward, to their owners only."""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from fairshard import comm
from fairshard._core import shard as _shard
from fairshard.nn.data_parallel._block_hooks import BlockHooks
from fairshard.nn.data_parallel._compilers import keep_from_compilers
from fairshard.nn.data_parallel._module_tree import ModuleTree

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ShardedDataParallel"]


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
        broadcast_buffers: rank 0's buffers go to all ranks when a backward ends.
        sync_models_at_startup: rank 0's parameters and buffers go to all ranks now.
        reduce_buffer_size: elements in a bucket where there is no OSS, which else decides it (default: 25 MiB of
            float32).
        auto_refresh_trainable: accepted; frozen and unfrozen parameters are always followed.
        reduce_fp16: the same as ``reduce_dtype=torch.float16``.
        warn_on_trainable_params_changed: accepted; changes cost nothing, so nothing is said.
        device_ids: accepted; the module stays where it is.
        mode: "gradients" (ZeRO-2) or "optimizer" (ZeRO-1: whole gradients in ``.grad``), with an OSS.
        reduce_dtype: the dtype in which gradients travel. Sums are taken in float32 over Gloo.
        static_graph: promises that every backward that is reduced uses the same parameters on this rank, which saves
            a message in each (with ``step_in_backward``: in each bucket). One that breaks it raises.
        mesh: instead of ``process_group``, a DeviceMesh with all ranks; how it shards is the OSS's affair, which
            is given the same.
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
        static_graph: bool = False,
        mesh: "DeviceMesh | None" = None,
    ) -> None:
        super().__init__()
        if mode not in ("gradients", "optimizer"):
            raise ValueError(f"mode is {mode!r}, but must be 'gradients' or 'optimizer'")
        if reduce_dtype is not None and not reduce_dtype.is_floating_point:
            raise ValueError(f"reduce_dtype is {reduce_dtype}, but gradients travel as floating point numbers only")
        self.module = module
        self._tree = ModuleTree(module)
        self._block_hooks: BlockHooks | None = None
        if not self._tree.parameters()[0]:
            raise ValueError(f"{type(module).__name__} has no parameters to train")
        # An OffloadModel's gradients are on the device when hooks see them; it says when they are on the host.
        is_offloaded = hasattr(module, "call_after_backward")
        self._options = {
            "shard_gradients": mode == "gradients",
            "broadcast_buffers": broadcast_buffers,
            "reduce_in_backward": not is_offloaded,
            "bucket_bytes": 4 * reduce_buffer_size,
            "reduce_dtype": torch.float16 if reduce_fp16 else reduce_dtype,
            "static_graph": static_graph,
        }
        group = comm.Mesh(process_group, mesh).all
        if is_offloaded and not (module.steps_in_backward and group.size == 1):
            reduce = weakref.WeakMethod(self._reduce_offloaded)
            module.call_after_backward(lambda: (method := reduce()) and method())
        self._engine = self._make_engine(group, sync_models_at_startup)
        _keep_names_of_module(self)

    def _make_engine(self, group: comm.Group, sync: bool) -> _shard.DataParallelEngine:
        keep_from_compilers(ShardedDataParallel, "_before_forward", "_after_forward")
        parameters, buffers = self._tree.parameters(), self._tree.buffers()
        return _shard.DataParallelEngine(group, *parameters, buffers, sync_at_startup=sync, **self._options)

    def _made_engine(self) -> _shard.DataParallelEngine:
        """The engine, which a copy gets where it is first trained."""
        if self._engine is None:
            self._engine = self._make_engine(comm.Group(), sync=False)
        return self._engine

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key not in ("_engine", "_block_hooks", "_tree")}

    def __setstate__(self, state: dict) -> None:
        """Makes a copy, which can be looked at anywhere, and trained where there is a process group."""
        super().__setstate__(state)
        self._tree = ModuleTree(self.module)
        self._block_hooks = None
        self._engine = None

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return next(self.module.parameters()).device

    device_type = property(lambda self: self.device.type, doc="Of that, the kind.")
    is_multi_device_module = property(
        lambda self: len({p.device for p in self.module.parameters()}) > 1, doc="Whether it is on several devices."
    )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        self._before_forward()
        outputs = self.module(*inputs, **kwargs)
        self._after_forward()
        return outputs

    def _before_forward(self) -> None:
        if self._engine is None and not (self.training and torch.is_grad_enabled()):
            return
        engine = self._made_engine()
        if self._tree.has_changed() or (self._block_hooks is not None and not self._block_hooks.are_in_place()):
            engine.set_parameters(*self._tree.parameters())
            self._remove_block_hooks()
        engine.before_forward(self.module.training)
        if engine.uses_blocks and self._block_hooks is None:
            self._block_hooks = BlockHooks(self, self.module, engine)

    def _after_forward(self) -> None:
        if self._engine is None:
            return
        if self._engine.wants_blocks and self.module.training and torch.is_grad_enabled():
            self._block_hooks.assign()
        self._engine.after_forward(self._tree.buffers())

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it, backward reduces nothing and gradients add up in ``.grad``; the next one reduces the sum."""
        engine = self._made_engine()
        before, engine.sync = engine.sync, False
        try:
            yield
        finally:
            engine.sync = before

    def set_requires_gradient_sync(self, requires_gradient_sync: bool) -> None:
        """From here on, backward reduces gradients or not, as torch's fully_shard has it; see :meth:`no_sync`."""
        self._made_engine().sync = bool(requires_gradient_sync)

    def register_comm_hook(
        self, state: object, hook: Callable[[Any, "dist.GradBucket"], "torch.futures.Future[Any]"]
    ) -> None:
        """Has a hook of torch's DDP average gradients, in place of an all-reduce: once, the same on all ranks.

        It is called with ``state`` and each bucket of this rank's own gradients (a ``dist.GradBucket``), and returns
        a future of what they become. Where gradients are sharded it is refused, as a rank has no whole buckets then.
        """
        if not callable(hook):
            raise TypeError(f"a communication hook is called with a state and a bucket, but {hook!r} cannot be called")
        self._made_engine().set_comm_hook(state, _checked(hook))

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Around a training loop of which ranks may do different numbers of rounds.

        A rank whose loop has ended takes part in what the others do, with gradients of zero (averages are
        still taken over all ranks), until all have ended; then all have one model. Steps, clipping and
        reductions may stand in the loop; other collectives may not.
        """
        engine = self._made_engine()
        engine.begin_join()
        has_failed = True
        try:
            yield
            engine.follow_others()
            has_failed = False
        finally:
            engine.end_join(self._tree.buffers(), has_failed)

    def wait_for_parameters(self) -> None:
        """Returns when all parameters are in place; see ``overlap_gather`` of OSS."""
        if self._engine is not None:
            self._engine.wait_for_parameters()

    def reduce(self) -> None:
        """Reduces what is in ``.grad`` now. Backward does this by itself, unless under ``no_sync``."""
        self._made_engine().reduce()

    def refresh_trainable(self) -> None:
        """Does nothing: frozen and unfrozen parameters are followed by themselves."""

    def sync_buffers(self, blocking: bool = False) -> None:
        """Makes all ranks' buffers those of rank 0. Always blocks."""
        self._made_engine().broadcast_buffers(self._tree.buffers(), 0)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradients, or makes them zero."""
        self.module.zero_grad(set_to_none)
        if self._engine is not None and set_to_none:
            self._engine.clear_gradients()

    def to(self, *arguments: Any, **kwargs: Any) -> "ShardedDataParallel":
        """Changes the dtype, at any time. The device must stay what it is: move the module before it is wrapped."""
        device, *_ = torch._C._nn._parse_to(*arguments, **kwargs)
        current = self.device
        if device is not None and (device.type, device.index or 0) != (current.type, current.index or 0):
            raise RuntimeError(
                f"ShardedDataParallel cannot move from {current} to {device}: the parameters are sharded where they "
                "are. Move the module before it is wrapped"
            )
        return super().to(*arguments, **kwargs)

    def _apply(self, *arguments: Any, **kwargs: Any) -> "ShardedDataParallel":
        self.wait_for_parameters()
        return super()._apply(*arguments, **kwargs)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This and all modules within; their names, and those of parameters and buffers, are the state dict's."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _fqn_modifiers(self) -> dict[str, str]:
        """Tells torch.distributed.checkpoint which names are found in the module."""
        children, parameters = self.module.named_children(), self.module.named_parameters(recurse=False)
        return {name: "module" for name, _ in itertools.chain(children, parameters)}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _remove_block_hooks(self) -> None:
        if self._block_hooks is not None:
            self._block_hooks.remove()
            self._block_hooks = None

    def _reduce_offloaded(self) -> None:
        if self._made_engine().sync:
            self._engine.reduce()


def _checked(hook: Callable) -> Callable:
    """The communication hook; torch would crash if it returned None."""

    def run(state: object, bucket: "dist.GradBucket") -> torch.futures.Future:
        future = hook(state, bucket)
        if not isinstance(future, torch._C.Future):
            raise TypeError(f"a communication hook must return a torch.futures.Future, but returned {future!r}")
        return future

    return run


def _keep_names_of_module(wrapper: ShardedDataParallel) -> None:
    """Has state dicts name parameters as the module does, wherever the wrapper stands in a tree of modules."""
    wrapper._register_state_dict_hook(_without_own_name)
    wrapper.register_state_dict_pre_hook(_wait_for_parameters)
    wrapper.register_load_state_dict_pre_hook(_with_own_name)


def _wait_for_parameters(wrapper: ShardedDataParallel, *_: Any) -> None:
    wrapper.wait_for_parameters()


def _without_own_name(wrapper: ShardedDataParallel, state: dict, prefix: str, *_: Any) -> None:
    own = f"{prefix}module."
    for key in [key for key in state if key.startswith(own)]:
        state[prefix + key.removeprefix(own)] = state.pop(key)
    metadata = getattr(state, "_metadata", {})
    for key in [key for key in metadata if f"{key}.".startswith(own)]:
        metadata[(prefix + f"{key}.".removeprefix(own)).removesuffix(".")] = metadata.pop(key)


def _with_own_name(wrapper: ShardedDataParallel, state: dict, prefix: str, *_: Any) -> None:
    wrapper.wait_for_parameters()
    own = f"{prefix}module."
    if any(prefix + name in state for name in wrapper._tree.parameters()[0]):  # and not names of torch's DDP
        for key in [key for key in state if key.startswith(prefix)]:
            state[own + key.removeprefix(prefix)] = state.pop(key)
