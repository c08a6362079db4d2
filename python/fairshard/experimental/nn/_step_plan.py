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


def plan_steps(worker: Any, optimizer: torch.optim.Optimizer) -> None:
    """Tells the worker how each parameter is stepped; states are the optimizer's own.

    They are made, or moved to where the parameter's memory is, if need be.
    """
    rule = rule_of(optimizer)
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise ValueError("optimizer has differentiable=True, which cannot step in backward")
        options = {key: group[key] for key in ("weight_decay", "maximize")}
        options["lr"] = float(group["lr"])
        if rule == "sgd":
            options |= {key: group[key] for key in ("momentum", "dampening", "nesterov")}
        else:
            beta1, beta2 = (float(beta) for beta in group["betas"])
            options |= {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "amsgrad": group["amsgrad"]}
        for parameter in group["params"]:
            if parameter.requires_grad:
                worker.plan(parameter, rule=rule, **options, **_state(worker, optimizer, parameter, group, rule))


def _state(worker: Any, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: dict, rule: str) -> dict:
    state = optimizer.state[parameter]
    if rule == "sgd":
        if group["momentum"] == 0:
            return {"state": []}
        is_first = state.get("momentum_buffer") is None
        state["momentum_buffer"] = worker.home_of(state.get("momentum_buffer"), parameter)
        return {"state": [state["momentum_buffer"]], "is_first": is_first}
    names = ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if group["amsgrad"] else [])
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32)
    for name in names:
        state[name] = worker.home_of(state.get(name), parameter)
    return {"state": [state["step"], *(state[name] for name in names)]}
