"""What an optimizer of torch's would do, in the words of the core's optimizer worker."""

from typing import Any

import torch

RULES = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}


def rule_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of the optimizer's rule; raises ValueError if the worker has none for it."""
    rule = RULES.get(type(optimizer))
    if rule is None:
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}, but only AdamW, Adam and SGD can step in backward. Leave the "
            "option out, and call optimizer.step() after backward"
        )
    return rule


def plan_steps(worker: Any, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Tells the worker how each parameter is stepped; states are the optimizer's own.

    Raises ValueError if the optimizer lacks a parameter of the model that requires a gradient, which would be lost.
    """

    def set_field(parameter: torch.Tensor, field: str, value: torch.Tensor) -> None:
        optimizer.state[parameter][field] = value

    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise ValueError("optimizer has differentiable=True, which cannot step in backward")
        get_field = lambda parameter, field: optimizer.state[parameter].get(field)  # noqa: E731
        worker.plan(rule_of(optimizer), group, group["params"], get_field, set_field)
    if lacking := worker.without_plan():
        names = [name for name, own in model.named_parameters() if own is lacking[0]]
        raise ValueError(
            f"{len(lacking)} parameter(s) of the offloaded model ({names[0]!r} of shape {list(lacking[0].shape)} is "
            "the first) require a gradient, but are not in the optimizer: give it to it or freeze it"
        )
