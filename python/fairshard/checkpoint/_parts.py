"""What each kind of part saves, and how it takes it up again."""

from collections import Counter
from typing import Any

import torch
from torch import nn

from fairshard._core import store as _store
from fairshard.checkpoint._context import Context
from fairshard.checkpoint._optimizers import OssPart, PlainOptimizerPart
from fairshard.checkpoint._values import from_json, tensor_paths, to_json
from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from fairshard.experimental.nn.offload import OffloadModel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, AdaScale

__all__ = ["Rng", "part_of"]


class Rng:
    """The default generators of the CPU and of the GPUs in use, of each rank, as a part of a checkpoint.

    A rank that was not there when it was saved keeps its own.
    """


def part_of(value: Any, name: str) -> Any:
    """The part that knows how to save a value."""
    if isinstance(value, SlowMoDistributedDataParallel):
        return SlowMoPart(value)
    if isinstance(value, nn.Module):
        return ModulePart(value)
    if isinstance(value, AdaScale):
        return AdaScalePart(value, part_of(value.optimizer, name))
    if isinstance(value, OSS) and isinstance(value.optim, AdaScale):
        return AdaScalePart(value.optim, OssPart(value))
    if isinstance(value, OSS):
        return OssPart(value)
    if isinstance(value, torch.optim.Optimizer):
        return PlainOptimizerPart(value)
    if isinstance(value, Rng):
        return RngPart()
    if isinstance(value, torch.Tensor):
        return TensorPart(value)
    if isinstance(value, dict):
        return DictPart(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return StatefulPart(value)
    raise TypeError(
        f"part '{name}' is of type {type(value).__name__}: a part is a module, an optimizer, Rng(), a tensor, a dict, "
        "or has state_dict and load_state_dict. Put plain values into a dict"
    )


class Part:
    """Something that is saved and loaded under a name."""

    can_copy = True
    """Whether its state may be copied to host memory, to be written beside training."""

    def describe(self, name: str, context: Context) -> None:
        """Called on all parts before any of them is saved or loaded."""

    def save(self, name: str, context: Context, state: Any) -> None:
        """Adds what there is to save."""
        raise NotImplementedError

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Asks for it again."""
        raise NotImplementedError


class ModulePart(Part):
    """Parameters, which all ranks have alike, and buffers, of which rank 0's are saved."""

    def __init__(self, module: nn.Module) -> None:
        self._wrapper = module
        while isinstance(module, (ShardedDataParallel, nn.parallel.DistributedDataParallel)):
            module = module.module
        self._module = module
        # A paged model is in host memory already, and a copy of it would need as much again.
        self.can_copy = not isinstance(module, OffloadModel)

    def describe(self, name: str, context: Context) -> None:
        """Waits for parameters, and tells their names."""
        if isinstance(self._wrapper, ShardedDataParallel):
            self._wrapper.wait_for_parameters()
        if isinstance(self._module, OffloadModel):
            self._module.wait_for_step()
        context.add_module(name, self._module)

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves exact values where an OSS has them."""
        for key, value in self._module.state_dict(keep_vars=True).items():
            exact = context.exact_entries_of(value) if isinstance(value, torch.Tensor) else None
            if exact is not None:
                for entry in exact:
                    state.add_range(f"{name}/{key}", value, entry.slice.begin, entry.slice.end, entry.values)
            elif isinstance(value, nn.Parameter):
                state.add_alike(f"{name}/{key}", value)
            elif isinstance(value, torch.Tensor):
                state.add_first(f"{name}/{key}", value)
            else:
                state.add_value(f"{name}/{key}", to_json(value, f"{name}/{key}"))

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Fills the tensors in place."""
        extra: dict[str, Any] = {}
        for key, value in self._module.state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor):
                plan.add_tensor(f"{name}/{key}", value.detach())
            else:
                plan.add_value(f"{name}/{key}", lambda text, key=key: extra.update({key: from_json(text)}))
        plan.then(lambda: self._module.load_state_dict(extra, strict=False) if extra else None)


class AdaScalePart(Part):
    """An optimizer with, under "part/adascale", the running means of the AdaScale around it or in it."""

    def __init__(self, adascale: AdaScale, optimizer_part: Any) -> None:
        self._adascale = adascale
        self._optimizer_part = optimizer_part

    def describe(self, name: str, context: Context) -> None:
        """The optimizer's."""
        self._optimizer_part.describe(name, context)

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves both."""
        self._optimizer_part.save(name, context, state)
        means = {key: value.tolist() for key, value in self._adascale.shared_state().items()}
        state.add_value(f"{name}/adascale", to_json(means, f"{name}/adascale"))

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Asks for both; means begin anew if the optimizer had no AdaScale."""

        def take(text: str) -> None:
            values = from_json(text).items()
            self._adascale.load_shared_state({key: torch.tensor(v, dtype=torch.float64) for key, v in values})

        self._optimizer_part.load(name, context, plan)
        plan.add_optional_value(f"{name}/adascale", take)


class SlowMoPart(ModulePart):
    """The module, and under "part.slowmo" what each rank keeps of nodes that train apart."""

    def __init__(self, slowmo: SlowMoDistributedDataParallel) -> None:
        super().__init__(slowmo.module)
        self._slowmo = slowmo

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves both."""
        super().save(name, context, state)
        tensors, scalars = self._slowmo.outer_state()
        for key, tensor in tensors.items():
            state.add_whole(_store.own_key(f"{name}.slowmo", state.rank, key), tensor)
        key = _store.own_key(f"{name}.slowmo", state.rank, "scalars")
        state.add_own_value(key, to_json(scalars, key))

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Asks for both."""
        super().load(name, context, plan)
        own = _store.own_key(f"{name}.slowmo", plan.rank, "")
        tensors: dict[str, torch.Tensor] = {}
        scalars: dict[str, float] = {}
        for key in plan.reader.names_under(own):
            plan.add_any(own + key, lambda values, key=key: tensors.update({key: values}))
        plan.add_value(f"{own}scalars", lambda text: scalars.update(from_json(text)))
        plan.then(lambda: self._slowmo.load_outer_state(tensors, scalars))


class RngPart(Part):
    """The random generators of each rank."""

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves this rank's."""
        state.add_whole(_store.own_key(name, state.rank, "cpu"), torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                state.add_whole(_store.own_key(name, state.rank, f"cuda-{device}"), torch.cuda.get_rng_state(device))

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Takes up those that this rank had."""
        for key in plan.reader.names_under(f"{name}/"):
            plan.expects(f"{name}/{key}")  # also those of other ranks, and of GPUs that are not here
        cpu = _store.own_key(name, plan.rank, "cpu")
        if plan.expects(cpu):
            plan.add_any(cpu, torch.set_rng_state)
        for device in range(torch.cuda.device_count()):
            key = _store.own_key(name, plan.rank, f"cuda-{device}")
            if plan.expects(key):
                plan.add_any(key, lambda values, device=device: torch.cuda.set_rng_state(values, device))


class TensorPart(Part):
    """A tensor that all ranks have alike."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves it."""
        state.add_alike(name, self._tensor)

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Fills it in place."""
        plan.add_tensor(name, self._tensor.detach())


def _save_value(key: str, value: Any, state: Any) -> None:
    """A value as JSON under ``key``, its tensors under keys that begin with it."""
    state.add_value(key, to_json(value, key, state.add_alike))


def _load_value(key: str, plan: Any, take: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    text = plan.reader.value(key)
    for path in tensor_paths(text) if text is not None else ():
        plan.add_any(path, lambda tensor, path=path: tensors.update({path: tensor}))
    plan.add_value(key, lambda _: None)
    plan.then(lambda: take(from_json(text, tensors)) if text is not None else None)


class DictPart(Part):
    """A dict of tensors and plain values; each item has a key of its own."""

    def __init__(self, values: dict) -> None:
        self._values = values

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves every item."""
        for key, value in self._values.items():
            if isinstance(value, torch.Tensor):
                state.add_alike(f"{name}/{key}", value)
            else:
                _save_value(f"{name}/{key}", value, state)

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Changes the dict in place; tensors that are there are filled, not replaced."""
        for key, value in self._values.items():
            if isinstance(value, torch.Tensor):
                plan.add_tensor(f"{name}/{key}", value.detach())
            else:
                _load_value(f"{name}/{key}", plan, lambda new, key=key: self._values.update({key: new}))


class StatefulPart(Part):
    """Anything with state_dict and load_state_dict: schedulers, scalers, samplers, ..."""

    def __init__(self, stateful: Any) -> None:
        self._stateful = stateful

    def save(self, name: str, context: Context, state: Any) -> None:
        """Saves the state dict as one value, and its tensors."""
        _save_value(name, self._stateful.state_dict(), state)

    def load(self, name: str, context: Context, plan: Any) -> None:
        """Gives it back the state dict."""

        def take(values: dict) -> None:
            for key, value in self._stateful.state_dict().items():
                if isinstance(value, Counter) and key in values:
                    values[key] = Counter(values[key])
            self._stateful.load_state_dict(values)

        _load_value(name, plan, take)
