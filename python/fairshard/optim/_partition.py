"""How the parameters of an OSS are partitioned, by the class of its base optimizer."""

import torch

from fairshard._core import shard as _shard


def class_of_steps(optim: type, options: dict) -> type:
    """The class that does the arithmetic, if ``optim`` is one that wraps another."""
    return optim.class_of_steps(options) if hasattr(optim, "class_of_steps") else optim


def may_step_in_parts(optim: type, steps: type) -> bool:
    """Whether ``optim`` may be called for some slices, then for the others: a class that wraps another counts calls."""
    is_wrapper = isinstance(optim, type) and steps is not optim
    return not is_wrapper and _is_known_element_wise(steps)


def _is_known_element_wise(optim: type) -> bool:
    """Whether it is one of torch's own classes that treat every element by itself, and keep no other counts."""
    return getattr(torch.optim, optim.__name__, None) is optim and _shard.is_element_wise(optim.__name__)


def needs_whole_tensors(optim: type, partition: str) -> bool:
    """Whether slices are whole parameters, for a class that does the arithmetic; see OSS about ``partition``."""
    if partition not in ("auto", "even", "tensor"):
        raise ValueError(f"OSS: partition is {partition!r}, but must be 'auto', 'even' or 'tensor'")
    if issubclass(optim, torch.optim.LBFGS):
        raise NotImplementedError("OSS: LBFGS looks at all parameters together, so that its state cannot be sharded")
    if issubclass(optim, torch.optim.SparseAdam):
        raise NotImplementedError("OSS: SparseAdam needs sparse gradients, which cannot be sharded")
    is_element_wise = _is_known_element_wise(optim)
    is_torch = getattr(torch.optim, optim.__name__, None) is optim
    if partition == "even" and is_torch and not is_element_wise:
        raise ValueError(
            f"OSS: {optim.__name__} looks at whole tensors, which partition='even' would split: use 'tensor'"
        )
    return partition == "tensor" or (partition == "auto" and not is_element_wise)
