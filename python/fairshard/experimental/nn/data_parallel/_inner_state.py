"""What the outer loop needs of the inner optimizer: learning rates, and its momentum zeroed."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch

_ADAM = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")


class LearningRates:
    """The learning rate of every parameter, by the optimizer's groups. Where each is, is looked up once."""

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._known: tuple = ()
        self._places: list[int | None] = []

    def of(
        self, optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.Tensor]], tensors: list[torch.Tensor]
    ) -> list[float]:
        """`tensors` are what the optimizer has for the named parameters."""
        groups = optimizer.param_groups
        known = (len(tensors), *(len(group["params"]) for group in groups))
        is_same = self._optimizer is not None and self._optimizer() is optimizer and known == self._known
        if not is_same or None in self._places:
            self._places = self._look_up(groups, named, tensors)
            self._optimizer, self._known = weakref.ref(optimizer), known
        rates = [float(group["lr"]) for group in groups]
        return [0.0 if place is None else rates[place] for place in self._places]

    @staticmethod
    def _look_up(groups: list[dict], named: list, tensors: list[torch.Tensor]) -> list[int | None]:
        owners = {id(tensor): number for number, group in enumerate(groups) for tensor in group["params"]}
        places = [owners.get(id(tensor)) for tensor in tensors]
        for (name, parameter), place in zip(named, places, strict=True):
            if place is None and parameter.requires_grad:
                raise ValueError(
                    f"perform_slowmo: the optimizer does not have parameter '{name}' of the module, "
                    "which requires a gradient"
                )
        return places


@torch.no_grad()
def zero_state(optimizer: torch.optim.Optimizer, tensors: Iterable[torch.Tensor], momentum: bool, adam: bool) -> None:
    """Zeroes SGD's momentum, or makes Adam's averages start anew, for these tensors."""
    keys = (("momentum_buffer",) if momentum else ()) + (_ADAM if adam else ())
    for tensor in tensors:
        state = optimizer.state.get(tensor, {})
        for key in keys:
            if isinstance(state.get(key), torch.Tensor):
                state[key].zero_()
