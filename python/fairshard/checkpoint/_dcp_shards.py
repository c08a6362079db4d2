"""An OSS's state as ``dcp.load`` fills it, which needs to be there before the first step."""

from typing import Any

import torch

from fairshard.optim import OSS, _state
from fairshard.optim._shards import shards_of


def shards_to_fill(oss: OSS) -> dict[torch.Tensor, dict[str, Any]]:
    """For each parameter of which this rank has a part, its state; before the first step, what that begins with."""
    return shards_of(oss, None if oss.optim.state else _first_states(oss))


def _first_states(oss: OSS) -> dict[torch.Tensor, dict]:
    """The states of an optimizer that has not stepped, to be filled: those of a step of length zero, then undone."""
    base, entries = oss.optim, oss.entries
    rates = [group.get("lr") for group in base.param_groups]
    values = [entry.values for entry in entries]
    before = [value.detach().clone() for value in values]
    try:
        for group in base.param_groups:
            if "lr" in group:
                group["lr"] = torch.zeros_like(group["lr"]) if torch.is_tensor(group["lr"]) else 0.0
        for value in values:
            value.grad = torch.zeros_like(value)
        base.step()
        masters = {e.values: {_state.MASTER: e.values.detach().clone()} if e.has_master else {} for e in entries}
        return {value: {**base.state.get(value, {}), **masters[value]} for value in values}
    finally:
        base.state.clear()
        for group, rate in zip(base.param_groups, rates, strict=True):
            if "lr" in group:
                group["lr"] = rate
        with torch.no_grad():
            for value, old in zip(values, before, strict=True):
                value.grad = None
                value.copy_(old)
