"""OSS: any element-wise torch optimizer, with its state sharded over ranks."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from fairshard import comm
from fairshard._core import shard as _shard
from fairshard.optim import _state

__all__ = ["OSS"]

#: torch's optimizers whose step treats every element by itself.
_ELEMENT_WISE = {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
#: Optimizers that need whole tensors, which even ranges cannot give them.
_WHOLE_TENSORS = {"Adafactor", "LBFGS", "LAMB", "LARS", "Lamb", "Muon", "SparseAdam"}

#: Under this name a parameter knows its FlatParameters, so that a ShardedDataParallel finds it.
PART_ATTRIBUTE = "_fairshard_part"


class OSS(torch.optim.Optimizer):
    """Shards the state of ``optim`` over the ranks of ``group``.

    Every rank holds the state of, and steps, an equal contiguous share of all elements (a parameter may
    be split between ranks), and then gathers the rest, so that after ``step()`` all ranks have all
    parameters. Results are those of ``optim`` itself.

    Gradients come from a :class:`~fairshard.nn.data_parallel.ShardedDataParallel`, or else from ``.grad``,
    which must then be the same on all ranks (as under torch's DistributedDataParallel).

    Construction, ``add_param_group``, ``step``, ``clip_grad_norm`` and ``consolidate_state_dict`` are
    collective: every rank of the group calls them.

    Args:
        params: parameters, or parameter groups, as for any torch optimizer.
        optim: the class of the optimizer that does the arithmetic.
        group: the process group (default: the world).
        broadcast_buffer_size: accepted for FairScale's sake; buckets are ``bucket_bytes`` large.
        broadcast_fp16: not supported.
        force_broadcast_object: accepted for FairScale's sake; no object is ever broadcast in a step.
        bucket_bytes: how much is communicated together.
        overlap_gather: ``step()`` returns while parameters are still being gathered, and the next
            forward of the ShardedDataParallel waits for them. Whoever reads parameters in between
            calls ``wait_for_parameters()`` first.
        **default: options of ``optim``.
    """

    def __init__(
        self,
        params: Iterable,
        optim: type[torch.optim.Optimizer] = torch.optim.SGD,
        group: "dist.ProcessGroup | None" = None,
        broadcast_buffer_size: int = -1,
        broadcast_fp16: bool = False,
        force_broadcast_object: bool = False,
        *,
        bucket_bytes: int = 25 << 20,
        overlap_gather: bool = False,
        **default: Any,
    ) -> None:
        if broadcast_fp16:
            raise NotImplementedError("OSS: broadcast_fp16 is not supported")
        _check_element_wise(optim)
        self._comm = comm.Group(group)
        self._bucket_bytes = bucket_bytes
        self._overlap_gather = overlap_gather
        self._parts: list[_shard.FlatParameters] = []
        self._first_groups: list[int] = []  # of each part, the number of its first parameter group
        self._consolidated: dict | None = None
        self._base: torch.optim.Optimizer | None = None
        super().__init__(params, default)
        sliced = self._shard_groups(self.param_groups)
        self._base = optim(sliced, **default)
        self.defaults = self._base.defaults
        self._groups_from_base()

    @property
    def optim(self) -> torch.optim.Optimizer:
        """This rank's base optimizer, over its slices of the parameters."""
        return self._base

    @property
    def group(self) -> comm.Group:
        """The ranks over which the state is sharded."""
        return self._comm

    @property
    def parts(self) -> list[_shard.FlatParameters]:
        """The sharded parameters: those given at the start, and one entry for each group added later."""
        return self._parts

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Steps this rank's share and gathers the others'. Extra arguments reach the base optimizer."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.wait_for_parameters()
        self._groups_to_base()
        slices = self._show_gradients()
        try:
            self._base.step(**kwargs)
        finally:
            for values in slices:
                values.grad = None
        self._groups_from_base()
        for part in self._parts:
            part.mark_used()
            part.start_gather()
        if not self._overlap_gather:
            self.wait_for_parameters()
        return loss

    def wait_for_parameters(self) -> None:
        """Returns when all parameters are in place; see ``overlap_gather``."""
        for part in self._parts:
            part.wait_for_values()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients: those in ``.grad``, and those that were reduced into this rank's share."""
        super().zero_grad(set_to_none)
        for part in self._parts:
            part.clear_gradients()

    def add_param_group(self, param_group: dict) -> None:
        """Shards one more group. A ShardedDataParallel made before finds it at its next forward."""
        super().add_param_group(param_group)
        if self._base is not None:
            self._base.add_param_group(self._shard_groups(self.param_groups[-1:])[0])
            self._groups_from_base()

    @torch.no_grad()
    def clip_grad_norm(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        filter_params_fn: Callable[[list], Iterable] | None = None,
    ) -> torch.Tensor:
        """Scales all gradients, over all ranks, to a norm of at most ``max_norm``; returns their norm."""
        if filter_params_fn is not None:
            raise NotImplementedError("OSS: clip_grad_norm with filter_params_fn is not supported")
        return _shard.clip_gradients(self._parts, float(max_norm), float(norm_type))

    def consolidate_state_dict(self, recipient_rank: int = 0) -> None:
        """Brings the state of all ranks together for ``state_dict()`` on one rank (-1: on all)."""
        self.wait_for_parameters()
        self._groups_to_base()
        state = _state.consolidate(self, recipient_rank in (-1, self._comm.rank))
        self._consolidated = state

    def state_dict(self, all_ranks: bool = False) -> dict:
        """The consolidated state, in the form of the plain torch optimizer's."""
        if self._consolidated is None:
            raise RuntimeError(
                "the optimizer's state is spread over the ranks: call consolidate_state_dict() on all of them first, "
                "and state_dict() on the recipient rank"
            )
        return self._consolidated

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes this rank's share of a plain torch optimizer's state, or of a consolidated one.

        ``state_dict`` is left as it was.
        """
        self._base.load_state_dict(_state.share_of(self, state_dict))
        self._groups_from_base()
        self._consolidated = None

    def partition_parameters(self) -> list[list[dict]]:
        """For every rank its parameter groups, with the slices that it owns as ``params``."""
        result = []
        for rank in range(self._comm.size):
            groups = [{**group, "params": []} for group in self.param_groups]
            for number, _, _, part_slice in _state.slices(self, rank):
                groups[number]["params"].append(part_slice.values)
            result.append(groups)
        return result

    def refresh_trainable(self) -> None:
        """Does nothing: frozen and unfrozen parameters are followed by themselves."""

    def _shard_groups(self, groups: list[dict]) -> list[dict]:
        """Lays out the parameters of new groups; returns the groups with this rank's slices instead."""
        names, tensors, numbers = [], [], []
        first = len(self.param_groups) - len(groups)
        for number, group in enumerate(groups):
            own_names = group.get("param_names") or [f"group{first + number}.{i}" for i in range(len(group["params"]))]
            names += own_names
            tensors += group["params"]
            numbers += [number] * len(group["params"])
        part = _shard.FlatParameters(self._comm, names, tensors, numbers, self._bucket_bytes)
        self._parts.append(part)
        self._first_groups.append(first)
        for _, tensor, _ in part.parameters:
            setattr(tensor, PART_ATTRIBUTE, part)
        sliced = [{k: v for k, v in group.items() if k != "param_names"} | {"params": []} for group in groups]
        for number, owner, _, piece in _state.slices(self, self._comm.rank):
            if owner is part:
                sliced[number - first]["params"].append(piece.values)
        return sliced

    def _show_gradients(self) -> list[torch.Tensor]:
        """Gives the base optimizer's tensors their gradients."""
        tensors = self._base_tensors()
        gradients = {id(part): part.gradients() for part in self._parts}
        for values, part, index in tensors:
            values.grad = gradients[id(part)][index]
        return [values for values, _, _ in tensors]

    def _base_tensors(self) -> list[tuple[torch.Tensor, Any, int]]:
        """The base optimizer's tensors, each with its part and its number among the part's slices."""
        iterators = [iter(group["params"]) for group in self._base.param_groups]
        return [
            (next(iterators[number]), part, index) for number, part, index, _ in _state.slices(self, self._comm.rank)
        ]

    def _groups_to_base(self) -> None:
        _copy_options(self.param_groups, self._base.param_groups)

    def _groups_from_base(self) -> None:
        _copy_options(self._base.param_groups, self.param_groups)


def _copy_options(source: list[dict], target: list[dict]) -> None:
    for a, b in zip(source, target, strict=True):
        b.update({key: value for key, value in a.items() if key not in ("params", "param_names")})


def _check_element_wise(optim: type) -> None:
    name = optim.__name__
    if name in _WHOLE_TENSORS:
        raise NotImplementedError(f"OSS: {name} needs whole tensors, but OSS gives it even slices of them")
    if name not in _ELEMENT_WISE:
        warnings.warn(
            f"OSS takes {name} for an optimizer that treats every element by itself; one that looks at whole "
            "tensors (their norms, say) would go wrong",
            stacklevel=3,
        )
