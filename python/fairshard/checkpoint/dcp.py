"""torch.distributed.checkpoint with an OSS: each rank saves and loads its own ranges, for any number of ranks.

:func:`get_state_dict` and :func:`set_state_dict` are torch's, but have an OSS's state in shards, so that nothing is
gathered; what they give is saved by ``dcp.save`` under the names that it has for DDP and a plain optimizer, and either
loads the other's. :class:`StorageReader` and :class:`StorageWriter` have ``dcp.load`` and ``dcp.save`` use checkpoints
of :class:`~fairshard.checkpoint.Checkpoint`.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict as _torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairshard.checkpoint._dcp_shards import shards_to_fill
from fairshard.checkpoint._dcp_storage import StorageReader, StorageWriter
from fairshard.optim import OSS

__all__ = ["StorageReader", "StorageWriter", "get_state_dict", "set_state_dict"]

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer]


def get_state_dict(model: nn.Module, optimizers: Optimizers) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of a model and of its optimizers, by the names of parameters; every rank has its part of an OSS's.

    For ``dcp.save``, and for ``dcp.load``, which fills them: then :func:`set_state_dict` gives them to model and
    optimizers. Local, but for ``release_parameters`` with ``overlap_gather``; changes nothing.
    """
    model_state = _torch.get_model_state_dict(model)
    state: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer in _listed(optimizers):
        if isinstance(optimizer, OSS):
            own = _state_of(optimizer, _names(model))
        else:
            own = _torch.get_optimizer_state_dict(model, optimizer)
        state["state"].update(own["state"])
        state["param_groups"] += own["param_groups"]
    return model_state, state


def set_state_dict(
    model: nn.Module,
    optimizers: Optimizers,
    *,
    model_state_dict: dict[str, Any],
    optim_state_dict: dict[str, Any],
    strict: bool = True,
) -> None:
    """Gives model and optimizers what :func:`get_state_dict`, here or torch's, gave and ``dcp.load`` has filled."""
    options = _torch.StateDictOptions(strict=strict)
    _torch.set_model_state_dict(model, model_state_dict, options=options)
    names = _names(model)
    for optimizer in _listed(optimizers):
        if isinstance(optimizer, OSS):
            groups = [_group_of(group, names, optim_state_dict) for group in optimizer.param_groups]
            optimizer.load_state_dict({"state": optim_state_dict["state"], "param_groups": groups})
        else:
            _torch.set_optimizer_state_dict(model, optimizer, optim_state_dict, options=options)


def _listed(optimizers: Optimizers) -> list[torch.optim.Optimizer]:
    return [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)


def _names(model: nn.Module) -> dict[torch.Tensor, str]:
    """The name of each parameter, without what DDP and torch.compile put before it."""
    prefix = "module." if isinstance(model, DistributedDataParallel) else ""
    return {p: name.removeprefix(prefix).replace("_orig_mod.", "") for name, p in model.named_parameters()}


def _state_of(oss: OSS, names: dict[torch.Tensor, str]) -> dict:
    oss._groups_to_base()
    groups = []
    for group in oss.param_groups:
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        groups.append({**options, "params": [_name_of(p, names) for p in group["params"]]})
    return {"state": {_name_of(p, names): fields for p, fields in shards_to_fill(oss).items()}, "param_groups": groups}


def _name_of(parameter: torch.Tensor, names: dict[torch.Tensor, str]) -> str:
    if parameter not in names:
        raise ValueError(
            f"a parameter of the OSS, of sizes {tuple(parameter.shape)}, is not in the model that was given"
        )
    return names[parameter]


def _group_of(group: dict, names: dict[torch.Tensor, str], state: dict) -> dict:
    """The options that a parameter group had, with its parameters as they are here."""
    own = [_name_of(parameter, names) for parameter in group["params"]]
    for theirs in state["param_groups"]:
        if own and own[0] in theirs["params"]:
            return {**theirs, "params": own}
    raise ValueError(
        f"no parameter group of the state dict has '{own[0] if own else ''}': make the groups as they were"
    )
