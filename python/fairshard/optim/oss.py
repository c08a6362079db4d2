"""OSS: any torch optimizer, with its state sharded over ranks."""

import warnings
import weakref
from collections.abc import Callable, Iterable
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fairshard import comm
from fairshard._core import shard as _shard
from fairshard.optim import _state
from fairshard.optim._numbers import numbers_of, set_numbers
from fairshard.optim._partition import class_of_steps, may_step_in_parts, needs_whole_tensors
from fairshard.optim._shards import shards_of
from fairshard.optim._twin import Twin
from fairshard.optim.grad_scaler import scaler_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["OSS"]


class OSS(torch.optim.Optimizer):
    """Shards the state of ``optim`` over the ranks of ``group``.

    Every rank holds the state of, and steps, its share of all elements, and then gathers the rest, so
    that after ``step()`` all ranks have all parameters. Results are those of ``optim`` itself.

    Gradients come from a :class:`~fairshard.nn.data_parallel.ShardedDataParallel`, or else from ``.grad``,
    which must then be the same on all ranks (as under torch's DistributedDataParallel).

    Construction, ``add_param_group``, ``step``, ``clip_grad_norm`` and ``consolidate_state_dict`` are
    collective: every rank of the group calls them.

    Example::

        optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=1e-3)
        model = ShardedDataParallel(model, optimizer)
        loss_fn(model(data), target).backward()
        optimizer.step()

    Args:
        params: parameters, or parameter groups, as for any torch optimizer.
        optim: the class of the optimizer that does the arithmetic.
        group: the process group (default: the world).
        broadcast_buffer_size: accepted for FairScale's sake; buckets are ``bucket_bytes`` large.
        broadcast_fp16: the same as ``gather_dtype=torch.float16``.
        force_broadcast_object: accepted for FairScale's sake; no object is ever broadcast in a step.
        partition: "even" (every rank owns an equal range of everything, parameters may be split),
            "tensor" (whole tensors, balanced by size), or "auto": "even" for torch's own optimizers
            that treat every element by itself, "tensor" for all others.
        bucket_bytes: how much is communicated together (default: an eighth of the model, with at least 4 MiB
            for each rank and at most 25 MiB; with ``release_parameters`` a sixteenth, and at least 1 MiB).
        overlap_gather: ``step()`` returns while parameters are still being gathered, and the
            ShardedDataParallel's next forward waits for them, module by module. Whoever reads
            parameters in between calls ``wait_for_parameters()`` first.
        step_in_backward: backward steps each bucket as soon as its gradients are reduced, drops them and
            gathers its values; ``step()`` only waits for that. Saves the gradients' memory and hides the
            gather. Gradients can then be neither clipped nor scaled nor looked at.
        release_parameters: between a block's forward and its backward, ranks keep only what they own of its
            parameters (ZeRO-3), so that forward's activations take their place; backward gathers them again, and
            where it ends all are there. Costs half as much traffic again. Needs a ShardedDataParallel.
            With ``overlap_gather`` ranks have only what they own between steps, too: the next forward gathers
            each block where it begins, and whatever reads parameters otherwise (``wait_for_parameters()``,
            ``state_dict()``, an evaluation) must be done on all ranks.
        master_weights: float16 and bfloat16 parameters are stepped in float32, on copies of what a
            rank owns.
        gather_dtype: the dtype in which parameters are gathered. All ranks then compute with the
            rounded values, and each steps an exact copy of what it owns.
        mesh: a DeviceMesh in place of ``group``. Of two dimensions, (replicate, shard): state is partitioned along
            the second only, gradients are reduce-scattered there and then summed along the first (HSDP).
        **default: options of ``optim``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optim: type[torch.optim.Optimizer] = torch.optim.SGD,
        group: "dist.ProcessGroup | None" = None,
        broadcast_buffer_size: int = -1,
        broadcast_fp16: bool = False,
        force_broadcast_object: bool = False,
        *,
        partition: str = "auto",
        bucket_bytes: int | None = None,
        overlap_gather: bool = False,
        step_in_backward: bool = False,
        release_parameters: bool = False,
        master_weights: bool = False,
        gather_dtype: torch.dtype | None = None,
        mesh: "DeviceMesh | None" = None,
        **default: Any,
    ) -> None:
        self._mesh = comm.Mesh(group, mesh)
        self._group = self._mesh.shards
        steps = class_of_steps(optim, default)
        self._whole_tensors = needs_whole_tensors(steps, partition)
        self._step_in_backward = step_in_backward
        self._overlap_gather = overlap_gather
        self._sharded_step = _shard.ShardedStep(
            self._mesh,
            _weak(self._step_slices),
            _weak(lambda self: numbers_of(self.param_groups), self),
            _weak(lambda self, numbers: set_numbers(self.param_groups, numbers), self),
            bucket_bytes=bucket_bytes,
            whole_tensors=self._whole_tensors,
            master_weights=master_weights,
            gather_dtype=torch.float16 if broadcast_fp16 else gather_dtype,
            overlap_gather=overlap_gather,
            step_in_backward=step_in_backward,
            release_parameters=release_parameters,
            step_in_parts=may_step_in_parts(optim, steps),
        )
        self._layout_version = -1
        self._step_arguments: dict = {}
        self._has_stepped = False  # this, or what its state was loaded from
        self._consolidated: dict | None = None
        self._base: torch.optim.Optimizer | None = None
        super().__init__(params, default)
        self._shard_groups(self.param_groups)
        self._base = optim(self._sliced_groups(self.param_groups), **default)
        self.defaults = self._base.defaults
        self._groups_from_base()
        for ours, theirs in zip(self.param_groups, self._base.param_groups, strict=True):
            for key in ours.keys() - theirs.keys() - {"param_names"}:
                del ours[key]  # options of a wrapper around the base optimizer, not of a group
        if hasattr(self._base, "measure_for"):
            self._base.measure_for(self)  # an AdaScale, as in the other places that ask what the base has

    @classmethod
    def from_optimizer(cls, optimizer: torch.optim.Optimizer, **options: Any) -> "OSS":
        """An OSS in place of a plain optimizer: its class, groups, options, state and hooks. Collective.

        ``options`` are those of an OSS. Learning rate schedulers made for ``optimizer`` go on with the OSS: both have
        one list of parameter groups. ``optimizer`` itself keeps no state and refuses to step.
        """
        twin = Twin(optimizer)
        oss = cls(optimizer.param_groups, twin, **options)
        twin.hand_over(oss)
        return oss

    @property
    def optim(self) -> torch.optim.Optimizer:
        """This rank's base optimizer, over its slices of the parameters."""
        return self._base

    @property
    def state(self) -> dict[Any, Any]:
        """This rank's part of the state, by slices of parameters."""
        return self._base.state if self._base is not None else {}

    @state.setter
    def state(self, _: dict[Any, Any]) -> None:
        """The base class sets it to nothing, which it is until there is a base optimizer."""

    @property
    def group(self) -> comm.Group:
        """The ranks over which the state is sharded."""
        return self._group

    @property
    def partition(self) -> str:
        """How the parameters are partitioned: "even" or "tensor"."""
        return "tensor" if self._whole_tensors else "even"

    @property
    def overlap_gather(self) -> bool:
        """Whether ``step()`` returns before all parameters are in place."""
        return self._overlap_gather

    @property
    def sharded_step(self) -> _shard.ShardedStep:
        """What a step is: the parameters' layout, values and gradients, in the core."""
        return self._sharded_step

    @property
    def entries(self) -> list[_shard.OwnedSlice]:
        """The slices that this rank owns, in the order of its memory."""
        self._follow_layout()
        return self._sharded_step.owned

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Steps this rank's share and gathers the others'. Extra arguments reach the base optimizer."""
        loss = None
        if closure:
            with torch.enable_grad():
                loss = closure()
        scaler = scaler_of(self._sharded_step.scaled_by)
        if scaler is not None:
            scaler.step_scaled(self, **kwargs)
            return loss
        if kwargs and self._step_in_backward:
            raise TypeError(f"OSS: step() cannot hand {', '.join(kwargs)} to steps that are taken in backward")
        if not _are_same(self._sharded_parameters, [group["params"] for group in self.param_groups]):
            raise RuntimeError(
                "OSS: the parameters in param_groups are not those that were sharded. Options may be changed there; "
                "for more parameters there is add_param_group(), and for fewer another OSS"
            )
        if self._sharded_step.awaits_reduction:
            warnings.warn(
                "OSS: step() after a backward within no_sync(): its gradients are those of each rank alone, and ranks "
                "drift apart. Let the last backward before a step be outside of no_sync()",
                stacklevel=3,
            )
        self._step_arguments = kwargs
        try:
            self._sharded_step.run()
        finally:
            self._step_arguments = {}
        return loss

    def _step_slices(self, slices: list[list[torch.Tensor]]) -> None:
        """Steps the base optimizer on these slices, which have their gradients, and on nothing else."""
        self._follow_layout()
        self._groups_to_base()
        groups = self._base.param_groups
        everything = [group["params"] for group in groups]
        for group, some in zip(groups, slices, strict=True):
            group["params"] = some
        try:
            self._base.step(**self._step_arguments)
            self._has_stepped, self._consolidated = True, None
        finally:
            for group, params in zip(groups, everything, strict=True):
                group["params"] = params
        self._groups_from_base()

    def wait_for_parameters(self) -> None:
        """Returns when all parameters are in place; see ``overlap_gather``."""
        self._sharded_step.wait_for_parameters()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients, or makes them zero, as any torch optimizer does."""
        super().zero_grad(set_to_none)
        if set_to_none:
            self._sharded_step.clear_gradients()
        if hasattr(self._base, "forget"):
            self._base.forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Shards one more group. A ShardedDataParallel made before finds it at its next forward."""
        super().add_param_group(param_group)
        if self._base is not None:
            self._shard_groups(self.param_groups[-1:])
            self._base.add_param_group(self._sliced_groups(self.param_groups)[-1])
            # Of the others, the base optimizer may have options of the last step.
            _copy_options(self._base.param_groups[-1:], self.param_groups[-1:])

    @torch.no_grad()
    def clip_grad_norm(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        filter_params_fn: Callable[[list[torch.Tensor]], Iterable[torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """Scales all gradients, over all ranks, to a norm of at most ``max_norm``; returns their norm.

        ``filter_params_fn`` gets the list of all parameters and returns those that count and are scaled.
        """
        selected = None
        if filter_params_fn is not None:
            selected = list(filter_params_fn([p for group in self.param_groups for p in group["params"]]))
        return self._sharded_step.clip(float(max_norm), float(norm_type), selected)

    def clip_grad_value(self, clip_value: float) -> None:
        """Brings every element of the gradients into the range from ``-clip_value`` to ``clip_value``."""
        self._sharded_step.clip_values(float(clip_value))

    def consolidate_state_dict(self, recipient_rank: int = 0) -> None:
        """Brings the state of all ranks together for ``state_dict()`` on one rank (-1: on all)."""
        self.wait_for_parameters()
        self._groups_to_base()
        state = _state.consolidate(self, recipient_rank in (-1, self._mesh.all.rank))
        self._consolidated = None if state is None else self._with_shared_state(state)

    def state_dict(self, all_ranks: bool = False) -> dict[str, Any]:
        """The state in the form of the plain torch optimizer's.

        It is whole on ranks for which it was consolidated after the last step. Elsewhere its tensors are those of which
        this rank has only a part: for ``load_state_dict()`` of this OSS and for torch.distributed.checkpoint, while
        ``torch.save`` and arithmetic refuse them. With ``all_ranks`` it is consolidated now, and on all ranks: then
        every rank calls this.
        """
        if all_ranks:
            self.consolidate_state_dict(-1)
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        # Of its own, since callers give other names to parameters. Before the first step there is nothing more.
        state = {**_state.without_state(self), **{k: dict(v) for k, v in self._whole_or_own_state().items()}}
        for hook in self._optimizer_state_dict_post_hooks.values():
            state = _or_before(hook(self, state), state)
        return state

    def _whole_or_own_state(self) -> dict[str, dict]:
        if self._consolidated is not None:
            return self._consolidated
        self._groups_to_base()
        places = _state.places_of(self)
        return self._with_shared_state({places[parameter]: own for parameter, own in shards_of(self).items()})

    def _with_shared_state(self, state: dict) -> dict[str, dict]:
        """A state, and what all ranks have in common, where the base optimizer is an AdaScale."""
        shared = {"adascale": self._base.shared_state()} if hasattr(self._base, "shared_state") else {}
        return {"state": state, **shared}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this rank's share of a plain torch optimizer's state, or of a consolidated one.

        ``state_dict`` is left as it was.
        """
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = _or_before(hook(self, state_dict), state_dict)
        is_own = self._consolidated is not None and _state.is_same(self._consolidated["state"], state_dict["state"])
        share, masters = _state.share_of(self, state_dict)
        self._base.load_state_dict(share)
        _state.set_masters(masters)
        if hasattr(self._base, "load_shared_state") and "adascale" in state_dict:
            self._base.load_shared_state(state_dict["adascale"])
        self._groups_from_base()
        self._sharded_step.freeze_layout()
        self._has_stepped |= bool(state_dict["state"])
        if not is_own:  # as it is where Accelerate takes an optimizer, and loads what it has just got from it
            self._consolidated = None
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def partition_parameters(self) -> list[list[dict[str, Any]]]:
        """For every rank its parameter groups, with the slices that it owns as ``params``."""
        self.wait_for_parameters()
        numbers = {p: number for number, group in enumerate(self.param_groups) for p in group["params"]}
        result = []
        for rank in range(self._group.size):
            groups = [{**group, "params": []} for group in self.param_groups]
            for flat_group in self._sharded_step.flat_groups:
                for owned in flat_group.slices_of(rank):
                    groups[numbers[flat_group.parameters[owned.parameter]]]["params"].append(owned.values)
            result.append(groups)
        return result

    def __getstate__(self) -> dict:
        raise TypeError(
            "an OSS cannot be copied or pickled, since its state is partitioned across ranks: make another over the "
            "copied parameters, and give it this one's state_dict()"
        )

    def refresh_trainable(self) -> None:
        """Does nothing: frozen and unfrozen parameters are followed by themselves."""

    def _shard_groups(self, groups: list[dict]) -> None:
        """Lays out the parameters of new groups."""
        names, tensors, numbers = [], [], []
        first = len(self.param_groups) - len(groups)
        for number, group in enumerate(groups):
            own_names = group.get("param_names") or [f"group{first + number}.{i}" for i in range(len(group["params"]))]
            names += own_names
            tensors += group["params"]
            numbers += [number] * len(group["params"])
        self._sharded_step.add(names, tensors, numbers, len(groups))
        self._sharded_parameters = [list(group["params"]) for group in self.param_groups]
        self._layout_version = -1

    def _sliced_groups(self, groups: list[dict]) -> list[dict]:
        """The groups with this rank's slices in place of the parameters."""
        sliced = [{k: v for k, v in group.items() if k != "param_names"} | {"params": []} for group in groups]
        for group, params in zip(sliced, self._sharded_step.slices, strict=True):
            group["params"] = params
        return sliced

    def _follow_layout(self) -> None:
        """Gives the base optimizer other slices, if the layout has changed since.

        A new group changes it, the order in which gradients were seen to arrive, or another dtype or device.
        """
        version = self._sharded_step.layout_version
        if version != self._layout_version and self._base is not None:
            self._layout_version = version
            _state.follow_slices(self._base, self._sharded_step.slices)

    def _groups_to_base(self) -> None:
        _copy_options(self.param_groups, self._base.param_groups)

    def _groups_from_base(self) -> None:
        _copy_options(self._base.param_groups, self.param_groups)


def _weak(method: Callable, owner: Any = None) -> Callable:
    """The method, or the function of an owner, as something that does not keep the owner alive."""
    function = method.__func__ if owner is None else method
    reference = weakref.ref(method.__self__ if owner is None else owner)
    return lambda *arguments: function(reference(), *arguments)


def _are_same(ours: list[list], theirs: list[list]) -> bool:
    """Whether two lists of lists are made of the very same objects."""
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(map(is_, a, b)) for a, b in zip(ours, theirs, strict=True)
    )


def _or_before(result: Any, before: Any) -> Any:
    """What a hook returned, or what it was given if it returned nothing."""
    return before if result is None else result


def _copy_options(source: list[dict], target: list[dict]) -> None:
    for a, b in zip(source, target, strict=True):
        b.update({key: value for key, value in a.items() if key not in ("params", "param_names")})
