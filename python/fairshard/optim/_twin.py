"""What an OSS needs to take the place of an optimizer that is made already."""

from collections import OrderedDict
from typing import Any

import torch


class Twin:
    """In place of an optimizer's class: makes another over other tensors, with all that this one was made with."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if hasattr(optimizer, "sharded_step") or hasattr(optimizer, "measure_for"):
            raise TypeError(
                f"OSS.from_optimizer takes a plain optimizer, but {type(optimizer).__name__} wraps one: shard "
                "that one, and wrap the OSS where it is to be wrapped"
            )
        parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, value in vars(optimizer).items():
            if name not in ("param_groups", "state") and any(id(each) in parameters for each in _items(value)):
                raise TypeError(
                    f"OSS.from_optimizer: {type(optimizer).__name__} keeps parameters in its {name!r}, and could not "
                    f"be given slices of them instead: make OSS(params, {type(optimizer).__name__}, ...)"
                )
        self._optimizer = optimizer

    def class_of_steps(self, options: dict) -> type:
        """Its class. All options of its own are in its groups, so that none are left for an OSS to pass on."""
        if options:
            raise TypeError(f"OSS.from_optimizer: OSS has no option {', '.join(map(repr, options))}")
        return type(self._optimizer)

    def __call__(self, groups: list[dict]) -> torch.optim.Optimizer:
        """Not by the class's own constructor, whose arguments nobody knows."""
        twin = object.__new__(type(self._optimizer))
        own = {name: value for name, value in vars(self._optimizer).items() if name != "step"}  # schedulers patch it
        vars(twin).update(own)
        torch.optim.Optimizer.__init__(twin, groups, self._optimizer.defaults)
        return twin

    def hand_over(self, oss: torch.optim.Optimizer) -> None:
        """Gives all that others hold of the optimizer to the OSS: groups, hooks, and schedulers' view of its steps."""
        old = self._optimizer
        # The dictionaries are the same ones, and so is the list from now on: a scheduler goes on writing there.
        old.param_groups = oss.param_groups
        hooks = {name: value for name, value in vars(old).items() if name.endswith("_hooks")}
        vars(old).update({name: OrderedDict() for name in hooks})
        if old.state:
            oss.load_state_dict(old.state_dict())
            old.state.clear()
        vars(oss).update(hooks)  # the dictionaries themselves: handles that remove hooks know them
        oss.register_step_post_hook(lambda *_: setattr(old, "_opt_called", True))  # what schedulers ask it
        old.register_step_pre_hook(_refuse_step)


def _items(value: Any) -> list:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def _refuse_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    name = type(optimizer).__name__
    raise RuntimeError(f"this {name} was taken over by OSS.from_optimizer, and does not step: call step() of the OSS")
