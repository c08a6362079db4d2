"""AdaScale: learning rates that follow what a large batch is worth."""

import inspect
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from fairshard import comm
from fairshard._core import scale as _scale
from fairshard._core import shard as _shard
from fairshard.optim._gradients import gradient_memory

__all__ = ["AdaScale", "AdaScaleWrapper"]


class AdaScale(torch.optim.Optimizer):
    """Wraps an optimizer, also an OSS, so that its steps take the learning rate times the gain.

    With a batch ``scale`` times the one that the learning rate was made for, a step is worth between 1 and
    ``scale`` of the old steps, according to how much the gradients of its parts differ: that is the
    gain (arXiv 2007.05105). It is measured in backward, per parameter group, so that it is known when
    ``loss.backward()`` returns. The last backward of a step must be one that reduces (not within ``no_sync()``).

    Gradients are never changed. Over several backward passes per step they add up: to their mean if
    each loss was divided by their number (``is_scaled_loss``), else to their sum, which
    ``scale_grad_by_num_grads_to_accum()`` makes a mean if it is called before ``step()``.

    Attributes that are not found here are the optimizer's.

    Example::

        optimizer = AdaScale(torch.optim.SGD(model.parameters(), lr=0.1))  # the rate for one rank
        loss_fn(model(data), target).backward()
        optimizer.step()
        scheduler.step(int(optimizer.effective_steps()))  # a schedule written for one rank

    Args:
        optimizer: the optimizer.
        world_size: the number of ranks (default: that of torch.distributed, or of the OSS); 1 if this process
            shares its gradients with no one.
        scale: how many normal batches make up a step (default: ranks x accumulated gradients).
        smoothing: how much of its running means a step keeps (default: max(1 - scale / 1000, 0)).
        num_gradients_to_accumulate: how many backward passes make up a step.
        is_scaled_loss: whether each loss is divided by that number.
        debias_ewma: whether running means are divided by the weight that they have got so far. If not, they are plain
            means of all steps until those are as many as the smoothing looks back on.
        rule: "sgd" (the learning rate is multiplied by the gain) or "adam" (by its square root). Default: by the
            optimizer's class.
    """

    #: The gradients that it steps on are unscaled, whatever the base optimizer could do.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        world_size: int | None = None,
        scale: float | None = None,
        smoothing: float | None = None,
        num_gradients_to_accumulate: int = 1,
        is_scaled_loss: bool = True,
        debias_ewma: bool = True,
        *,
        rule: str | None = None,
    ) -> None:
        # Not a call of Optimizer.__init__: parameter groups and states are the wrapped optimizer's.
        self._optimizer = optimizer
        self._rule = rule or _rule_for(optimizer)
        if self._rule not in ("sgd", "adam"):
            raise ValueError(f"AdaScale: rule is {rule!r}, but must be 'sgd' or 'adam'")
        self._world_size = world_size
        self._options = {
            "accumulation": num_gradients_to_accumulate,
            "is_scaled_loss": is_scaled_loss,
            "scale": scale,
            "smoothing": smoothing,
            "debias": debias_ewma,
        }
        self._sharded: Callable[[], Any] = lambda: optimizer if hasattr(optimizer, "sharded_step") else None
        self._make_meter(optimizer)

    def _make_meter(self, optimizer: torch.optim.Optimizer) -> None:
        groups = [group["params"] for group in optimizer.param_groups]
        self._meter = _scale.GainMeter(_group_of(optimizer, self._world_size), groups, **self._options)
        if self._sharded() is not None:
            self._meter.measure_from(self._sharded().sharded_step)

    def measure_for(self, sharded: torch.optim.Optimizer) -> None:
        """Says that this is the base optimizer of an OSS, whose whole parameters get the gradients."""
        self._sharded = weakref.ref(sharded)
        self._meter.unhook()
        self._make_meter(sharded)

    optimizer = property(lambda self: self._optimizer, doc="What this is around.")
    meter = property(lambda self: self._meter, doc="What measures.")
    scale = property(lambda self: self._meter.scale, doc="How many normal batches make up a step.")
    smoothing = property(lambda self: self._meter.smoothing, doc="How much of its running means a step keeps.")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's, with learning rates for a normal batch."""
        return self._optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._optimizer.param_groups = groups

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Steps with the learning rates times the gains. Extra arguments reach the optimizer."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._meter.require_measurement()
        gains = self._meter.gains()
        factors = gains.sqrt() if self._rule == "adam" else gains
        rates = [group["lr"] for group in self.param_groups]
        for group, rate, factor in zip(self.param_groups, rates, _numbers(factors, self.param_groups), strict=True):
            group["lr"] = rate * factor
        try:
            result = self._optimizer.step(**kwargs)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
        self._meter.count_step()
        return result if closure is None else loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's own; backward passes that no step has used count no longer."""
        self._optimizer.zero_grad(set_to_none)
        self.forget()

    def forget(self) -> None:
        """Drops what backward passes since the last step have shown."""
        self._meter.forget()

    def gain(self, pg_idx: int | None = None) -> float:
        """The gain of a parameter group, or of all together, with what the last backward has shown."""
        return float(self._meter.gain() if pg_idx is None else self._meter.gains()[pg_idx])

    def effective_steps(self) -> float:
        """How many steps of a normal batch the steps so far are worth: the sum of their gains."""
        return float(self._meter.effective_steps())

    def set_scale(self, scale: float, update_estimate: bool = True) -> None:
        """Changes the scale. ``update_estimate``: what a normal batch is has changed by it, and its variance."""
        self._meter.set_scale(scale, update_estimate)

    def set_num_gradients_to_accumulate(self, num_gradients_to_accumulate: int, update_smoothing: bool = True) -> None:
        """Changes how many backward passes make up a step; a scale and a smoothing that were not given follow.

        One backward on one rank stays a normal batch, so that there is no estimate to update. To keep the smoothing
        (``update_smoothing=False``), give it when the AdaScale is made.
        """
        if not update_smoothing and self._options["smoothing"] is None:
            raise ValueError("AdaScale: update_smoothing=False needs a smoothing that was given when it was made")
        self._meter.accumulation = num_gradients_to_accumulate

    @torch.no_grad()
    def scale_grad_by_num_grads_to_accum(self) -> None:
        """Makes means of gradients that are sums over several backward passes (``is_scaled_loss=False``)."""
        if self._options["is_scaled_loss"]:
            raise RuntimeError("AdaScale: the gradients are means already, since is_scaled_loss is true")
        for gradient in gradient_memory(self._sharded() or self._optimizer):
            gradient.div_(self._meter.accumulation)

    def unhook(self) -> None:
        """Stops measuring; ``step()`` then raises."""
        self._meter.unhook()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the optimizer, and measures its gain from now on."""
        self._optimizer.add_param_group(param_group)
        self._meter.add_group((self._sharded() or self._optimizer).param_groups[-1]["params"])

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, with the running means under "adascale"."""
        return {**self._optimizer.state_dict(), "adascale": self.shared_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state dict of this, or of the plain optimizer, which leaves the running means as they are."""
        own = state_dict.get("adascale")
        self._optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != "adascale"})
        if own is not None:
            self.load_shared_state(own)

    def shared_state(self) -> dict[str, Any]:
        """What all ranks have alike."""
        means, effective_steps = self._meter.state()
        return {"means": means.clone(), "effective_steps": effective_steps.clone()}

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Takes up what ``shared_state()`` gave."""
        self._meter.load(state["means"], state["effective_steps"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an AdaScale cannot be copied or pickled: make another one, and give it this one's state_dict()"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # not there yet: while it is being made, or copied
            raise AttributeError(name)
        return getattr(self._optimizer, name)


class AdaScaleWrapper(AdaScale):
    """An AdaScale that makes its optimizer: ``optim_cls(params, **additional_optim_args)``.

    ``optim_cls`` may be OSS; or this class may be given to an OSS as its ``optim``.

    Args:
        params: parameters, or parameter groups.
        world_size: see :class:`AdaScale`, as for those that follow.
        scale: how many normal batches make up a step.
        smoothing: how much of its running means a step keeps.
        num_gradients_to_accumulate: how many backward passes make up a step.
        debias_ewma: whether running means are divided by the weight that they have got so far.
        optim_cls: the class of the optimizer.
        is_scaled_loss: whether each loss is divided by the number of backward passes.
        rule: "sgd" or "adam".
        **additional_optim_args: options of ``optim_cls``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        world_size: int | None = None,
        scale: float | None = None,
        smoothing: float | None = None,
        num_gradients_to_accumulate: int = 1,
        debias_ewma: bool = True,
        optim_cls: type[torch.optim.Optimizer] = torch.optim.SGD,
        *,
        is_scaled_loss: bool = True,
        rule: str | None = None,
        **additional_optim_args: Any,
    ) -> None:
        # An OSS puts all options that it was given into its groups.
        own = {*inspect.signature(AdaScaleWrapper).parameters} - {"params", "additional_optim_args"}
        params = [{k: v for k, v in p.items() if k not in own} if isinstance(p, dict) else p for p in params]
        super().__init__(
            optim_cls(params, **additional_optim_args),
            world_size,
            scale,
            smoothing,
            num_gradients_to_accumulate,
            is_scaled_loss,
            debias_ewma,
            rule=rule,
        )

    @staticmethod
    def class_of_steps(options: dict[str, Any]) -> type[torch.optim.Optimizer]:
        """The class whose arithmetic it has if it is made with these options."""
        return options.get("optim_cls", torch.optim.SGD)


def _rule_for(optimizer: torch.optim.Optimizer) -> str:
    base = type(getattr(optimizer, "optim", optimizer))
    is_adam = any(_shard.is_adam_like(c.__name__) for c in base.__mro__ if c.__module__.startswith("torch.optim"))
    return "adam" if is_adam else "sgd"


def _group_of(optimizer: torch.optim.Optimizer, world_size: int | None) -> comm.Group | None:
    """The ranks between which gradients are averaged."""
    group = getattr(optimizer, "group", None)
    if not isinstance(group, comm.Group):
        group = comm.Group() if dist.is_available() and dist.is_initialized() and world_size != 1 else None
    size = 1 if group is None else group.size
    if world_size not in (None, size):
        raise ValueError(f"AdaScale: world_size is {world_size}, but gradients are averaged over {size} rank(s)")
    return group if size > 1 else None


def _numbers(factors: torch.Tensor, groups: list[dict]) -> Iterable:
    """Factors for learning rates: tensors, so that nobody waits for a GPU, where its optimizer takes those."""
    takes_tensors = factors.is_cuda and all(group.get("fused") or group.get("capturable") for group in groups)
    return factors.float().unbind() if takes_tensors else factors.tolist()
