"""OffloadModel: trains a model that does not fit on the device."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from fairshard._core import page as _page
from fairshard.experimental.nn._blocks import Blocks, is_checkpointed, list_blocks, refuse_caches
from fairshard.experimental.nn._step_plan import plan_steps, rule_of

__all__ = ["OffloadModel"]

_NONE = -1  # the pager's word for "no slice"


class OffloadModel(nn.Module):
    """Wraps a model whose weights stay in host memory; the device has those of a few slices at a time.

    Between steps ``parameters()`` are tensors in host memory, with gradients there, for any optimizer, clipping,
    scheduler or state dict. Buffers are on the device. The wrapped model itself, called directly, is offloaded too.

    Example::

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        offload = OffloadModel(model, torch.device("cuda"), num_slices=24, checkpoint_activation=True,
                               param_dtype=torch.bfloat16, optimizer=optimizer)
        loss_fn(offload(data), target).backward()  # steps slice by slice on the CPU
        optimizer.step()  # waits for that

    Args:
        model: an nn.Sequential; a list of modules, each of which makes up a slice; or any module, with ``blocks``.
        device: the device that computes.
        offload_device: where weights and gradients are: the CPU.
        num_slices: the most slices that the blocks are put into.
        checkpoint_activation: activations of a slice are computed again in backward, instead of being kept.
        num_microbatches: the batch is cut into as many parts, which every slice computes one after another.
        blocks: the blocks of a model that is not an nn.Sequential: modules that run one after another. Their names,
            the name of the container that has them ("transformer.h"), or a function that lists them. Parameters of no
            block stay on the device during a pass.
        optimizer: an AdamW, Adam or SGD over the parameters: every backward also steps, slice by slice, on the CPU
            while earlier slices compute; ``optimizer.step()`` then only waits. See :meth:`no_step`.
        param_dtype: the dtype of weights and gradients on the device and on the way, for instance torch.bfloat16.
        device_budget_bytes: device memory for weights; what is beyond the slots that are needed keeps slices from
            forward to backward.
        host_budget_bytes: host memory for weights and gradients; slices beyond it lie in files.
        spill_dir: the folder of these files.
        prefetch: slices that are copied ahead of the one that computes.
        optimizer_threads: that step; 0 for all cores but two.
        overlap_forward: with ``optimizer``, its ``step()`` does not wait: what is left to step is stepped while the
            next forward runs. Whoever reads a parameter then calls :meth:`wait_for_step` first; ``state_dict()`` and
            ``parameters()`` of this wrapper do so.
        offload_activations: with ``checkpoint_activation``, the inputs of slices wait for backward in host memory.
        record_spans: keeps times of compute, copies and steps, for :meth:`take_spans`.
    """

    _is_paged = True  # a Checkpoint writes it from where it is

    def __init__(
        self,
        model: "nn.Module | Sequence[nn.Module]",
        device: torch.device,
        offload_device: torch.device = torch.device("cpu"),  # noqa: B008 (FairScale's signature)
        num_slices: int = 3,
        checkpoint_activation: bool = False,
        num_microbatches: int = 1,
        *,
        blocks: Blocks = None,
        optimizer: torch.optim.Optimizer | None = None,
        param_dtype: torch.dtype | None = None,
        device_budget_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        spill_dir: str | None = None,
        prefetch: int = 1,
        optimizer_threads: int = 0,
        overlap_forward: bool = False,
        offload_activations: bool = False,
        record_spans: bool = False,
    ) -> None:
        super().__init__()
        if torch.device(offload_device).type != "cpu":
            raise ValueError(f"offload_device is {offload_device}, but weights are offloaded to the CPU only")
        if num_microbatches < 1:
            raise ValueError(f"num_microbatches is {num_microbatches}, but must be at least 1")
        if num_microbatches > 1 and blocks is not None:
            raise ValueError("num_microbatches needs an nn.Sequential or a list: a model with `blocks` runs as a whole")
        if offload_activations and (blocks is not None or not checkpoint_activation):
            raise ValueError("offload_activations needs checkpoint_activation and an nn.Sequential or a list")
        if num_slices < 1:
            raise ValueError(f"num_slices is {num_slices}, but must be at least 1")
        if optimizer is not None:
            rule_of(optimizer)
        elif overlap_forward:
            raise ValueError("overlap_forward needs the option optimizer")
        is_list = isinstance(model, (list, tuple))
        model = nn.Sequential(*model) if is_list else model
        if any(is_lazy(parameter) for parameter in model.parameters()):
            raise ValueError("the model has lazy modules, whose parameters have no values yet: run it once before")
        self._device = _page.checked_device(torch.device(device))
        self._blocks = list_blocks(model, blocks)
        self._spreads_tuples = is_list
        self._checkpoints = checkpoint_activation
        self._num_microbatches = num_microbatches
        own = [list(block.parameters()) for block in self._blocks]
        known = {parameter for block in own for parameter in block}
        rest = [parameter for parameter in model.parameters() if parameter not in known]
        places, slices, common = _page.slice_blocks(own, rest, None if is_list else num_slices)
        self._pager = _page.Pager(
            slices,
            common,
            device=self._device,
            param_dtype=param_dtype,
            prefetch=prefetch,
            device_budget_bytes=device_budget_bytes,
            host_budget_bytes=host_budget_bytes,
            spill_dir=spill_dir or "",
            record_spans=record_spans,
            offload_activations=offload_activations,
        )
        self._slices = [[block for block, at in zip(self._blocks, places, strict=True) if at == number]
                        for number in range(len(slices))]  # fmt: skip
        self._is_running = False
        self._blocks_run = 0
        self._optimizer = optimizer
        self._worker = None
        if optimizer is not None:
            self._worker = _page.OptimizerWorker(self._pager, optimizer_threads)
            if not overlap_forward:
                optimizer.register_step_pre_hook(lambda *_: self.wait_for_step())
            optimizer.register_state_dict_pre_hook(lambda *_: self.wait_for_step())
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.wait_for_step())
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self._device)
        self.model = model
        self._register_load_state_dict_pre_hook(_under_model)
        self._take_over(places, is_whole=blocks is not None)

    def _take_over(self, places: list[int], is_whole: bool) -> None:
        """Lets the model, and its blocks if it calls them itself, run through this wrapper."""
        if is_whole:
            self._plain_forward = self.model.forward
            names = {module: name for name, module in self.model.named_modules()}
            for block, number in zip(self._blocks, places, strict=True):
                block.forward = functools.partial(self._run_block, number, block, names[block], block.forward)
            self.model.forward = functools.partial(self._run, self._run_whole)
        else:
            self.model.forward = functools.partial(self._run, self._run_slices)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the model, as a call of the model itself does."""
        return self.model(*inputs, **kwargs)

    @property
    def steps_in_backward(self) -> bool:
        """Whether ``optimizer`` was given."""
        return self._worker is not None

    @contextlib.contextmanager
    def no_step(self) -> Iterator[None]:
        """With ``optimizer``: within it, backward does not step, and gradients add up for the next that does."""
        if self._worker is None:
            raise RuntimeError("no_step() is for an OffloadModel with the option optimizer")
        self._worker.set_stepping(False)
        try:
            yield
        finally:
            self._worker.set_stepping(True)

    def wait_for_step(self) -> None:
        """Returns when all parameters are stepped. ``optimizer.step()`` and ``state_dict()`` do so."""
        if self._worker is not None:
            self._worker.wait()

    def call_after_backward(self, call: Callable[[], None] | None) -> None:
        """Has ``call`` called at the end of every backward, when gradients are in host memory.

        A ShardedDataParallel around this reduces them so, because its own hooks are on tensors of the host. Refused
        with ``optimizer``, which has stepped by then with what this rank alone has.
        """
        if self._worker is not None:
            raise ValueError(
                "this OffloadModel steps in backward (its option optimizer), before its gradients could be averaged "
                "over ranks: leave the option out, and step after backward, by an OSS say"
            )
        self._pager.set_after_backward(call)

    def report(self) -> dict[str, float]:
        """What is where, and what was moved since the last forward began. ``wait_s``: the device waited for copies."""
        report = self._pager.report()
        if self._worker is not None:
            report |= {"optimizer_s": self._worker.busy_s(), "optimizer_elements": self._worker.elements()}
        return report

    def take_spans(self) -> list[tuple[str, str, float, float]]:
        """Track, name, start and end (seconds) of all that was done since the last call; see ``record_spans``."""
        return self._pager.take_spans()

    def state_dict(self, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """The model's own, under its own names."""
        self.wait_for_step()
        return self.model.state_dict(*arguments, **kwargs)

    def load_state_dict(self, *arguments: Any, **kwargs: Any) -> Any:
        """The model's own."""
        self.wait_for_step()
        return self.model.load_state_dict(*arguments, **kwargs)

    def named_parameters(self, *arguments: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's own, under its own names."""
        self.wait_for_step()
        return self.model.named_parameters(*arguments, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What is not found here is the model's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def _run(self, run: Callable, *inputs: Any, **kwargs: Any) -> Any:
        """A pass: everything that comes before, between and after what ``run`` does."""
        if self._is_running:
            raise RuntimeError("an offloaded model was called within its own forward")
        if self._worker is not None:
            self._worker.wait_for_plans()
        if self._worker is not None and torch.is_grad_enabled():
            plan_steps(self._worker, self._optimizer, self.model)
        # Casts of weights are not kept until the end of an autocast: they would be those of the whole model.
        keeps_casts = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        inputs, kwargs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device), (inputs, kwargs))
        self._is_running = True
        try:
            self._pager.begin(torch.is_grad_enabled())
            return run(*inputs, **kwargs)
        except BaseException:
            self._pager.abandon()
            raise
        finally:
            self._is_running = False
            torch.set_autocast_cache_enabled(keeps_casts)

    def _run_whole(self, *inputs: Any, **kwargs: Any) -> Any:
        self._blocks_run = 0
        outputs = self._plain_forward(*inputs, **kwargs)
        if self._blocks_run == 0:
            raise RuntimeError(
                f"the offloaded model has run, but none of its {len(self._blocks)} blocks has run: nothing would be "
                "paged. The option blocks must name modules that the model calls"
            )
        return self._cross(_NONE, outputs)

    def _run_block(
        self, number: int, block: nn.Module, name: str, plain_forward: Callable, *inputs: Any, **kwargs: Any
    ) -> Any:
        if not self._is_running:  # the second run of a checkpoint that the user has set
            if self._pager.current != number and self._device.type != "cpu":
                raise RuntimeError(
                    f"the block '{name}' runs again in backward, where its weights are not on the device: an "
                    "offloaded model must checkpoint with use_reentrant=False"
                )
            return plain_forward(*inputs, **kwargs)
        self._blocks_run += 1
        if self._checkpoints and torch.is_grad_enabled():
            refuse_caches(name, (*inputs, *kwargs.values()))
        inputs, kwargs = self._cross(number, (inputs, kwargs))
        return self._call([block], functools.partial(plain_forward, **kwargs), inputs)

    def _run_slices(self, *inputs: Any, **kwargs: Any) -> Any:
        parts = [inputs] if self._num_microbatches == 1 else _cut(inputs, self._num_microbatches)
        for number, blocks in enumerate(self._slices):
            parts = self._cross(number, parts)
            run = functools.partial(self._run_in_turn, blocks, kwargs if number == 0 else {})
            parts = [(self._call(blocks, run, part),) for part in parts]
            if self._spreads_tuples:
                parts = [part[0] if isinstance(part[0], tuple) else part for part in parts]
        if self._spreads_tuples:
            parts = [(part,) if len(part) > 1 else part for part in parts]
        parts = [part for (part,) in self._cross(_NONE, parts)]
        return parts[0] if len(parts) == 1 else _join(parts)

    def _run_in_turn(self, blocks: list[nn.Module], kwargs: dict, *values: Any) -> Any:
        for block in blocks:
            values = (block(*values, **kwargs),)
            kwargs = {}
        return values[0]

    def _call(self, blocks: list[nn.Module], run: Callable, inputs: tuple) -> Any:
        if not self._checkpoints or not torch.is_grad_enabled() or is_checkpointed():
            return run(*inputs)
        buffers = [buffer for block in blocks for buffer in block.buffers()]
        first = _FirstRun(buffers)
        return checkpoint(run, *inputs, use_reentrant=False, context_fn=lambda: (first, _SecondRun(buffers, first)))

    def _cross(self, to: int, values: Any) -> Any:
        """The same values, wherever in them tensors are, on the other side of the boundary of slices."""
        leaves, structure = pytree.tree_flatten(values)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        crossed = self._pager.cross(to, [leaves[i] for i in places])
        return pytree.tree_unflatten(_replaced(leaves, places, crossed), structure)


def _under_model(state: dict, prefix: str, *_: Any) -> None:
    """A parent loads children by their names, and this has given its model's own; see :meth:`state_dict`."""
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}model.{key[len(prefix) :]}"] = state.pop(key)


class _FirstRun:
    """Around the first run of a slice: keeps what it overwrites of the buffers."""

    def __init__(self, buffers: list[torch.Tensor]) -> None:
        self._buffers = buffers
        self.overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> None:
        self._before = [(buffer, buffer._version, buffer.clone()) for buffer in self._buffers]

    def __exit__(self, *_: Any) -> None:
        self.overwritten = [(buffer, value) for buffer, version, value in self._before if buffer._version != version]
        del self._before


class _SecondRun:
    """Around the second: it begins with the buffers that the first began with, and leaves them as they are.

    A backward with ``retain_graph`` is followed by another, so that there may be several of these.
    """

    def __init__(self, buffers: list[torch.Tensor], first: _FirstRun) -> None:
        self._buffers = buffers
        self._first = first

    def __enter__(self) -> None:
        self._kept = [(buffer, buffer.clone()) for buffer in self._buffers]
        _write(self._first.overwritten)

    def __exit__(self, *_: Any) -> None:
        _write(self._kept)
        del self._kept


def _write(values: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, value in values:
        buffer.data.copy_(value)  # by data: autograd may have saved the buffer, and counts what is written


def _cut(values: tuple, parts: int) -> list[tuple]:
    """The values with each tensor cut into equal parts along its first dimension."""
    leaves, structure = pytree.tree_flatten(values)
    places = [i for i, leaf in enumerate(leaves) if torch.is_tensor(leaf)]
    cut = _page.cut_batch([leaves[i] for i in places], parts)
    return [pytree.tree_unflatten(_replaced(leaves, places, tensors), structure) for tensors in cut]


def _join(parts: list) -> Any:
    """What micro-batches gave, as one batch."""
    leaves, structure = pytree.tree_flatten(parts[0])
    places = [i for i, leaf in enumerate(leaves) if torch.is_tensor(leaf)]
    pieces = [[leaf for leaf in pytree.tree_leaves(part) if torch.is_tensor(leaf)] for part in parts]
    return pytree.tree_unflatten(_replaced(leaves, places, _page.join_batches(pieces)), structure)


def _replaced(leaves: list, places: list[int], tensors: list[torch.Tensor]) -> list:
    new = dict(zip(places, tensors, strict=True))
    return [new.get(place, leaf) for place, leaf in enumerate(leaves)]
