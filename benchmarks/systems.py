"""What is compared: for each system, how a model is wrapped, what a step is, and what its name is in tables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ADAMW = {"lr": 1e-4, "fused": True}
#: So small that losses stay those of the other systems whatever gain AdaScale finds.
SGD = {"lr": 1e-6, "momentum": 0.9, "fused": True}


@dataclass
class Training:
    """A wrapped model, as the loop of rank.py drives it."""

    forward: Callable[..., torch.Tensor]
    optimizer: Any
    backward: Callable[[torch.Tensor], None] = lambda loss: loss.backward()
    step: Callable[[], Any] | None = None
    zero_grad: Callable[[], None] | None = None
    #: Returns when the parameters are in place, where a step may return before.
    finish: Callable[[], None] = lambda: None

    def train(self, *inputs: torch.Tensor) -> torch.Tensor:
        (self.zero_grad or self.optimizer.zero_grad)()
        loss = self.forward(*inputs)
        self.backward(loss)
        (self.step or self.optimizer.step)()
        return loss


def _adamw(parallel: nn.Module, model: nn.Module) -> Training:
    return Training(parallel, torch.optim.AdamW(model.parameters(), **ADAMW))


def alone(model: nn.Module) -> Training:
    """One rank, which sends nothing."""
    return _adamw(model, model)


def _ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def ddp(model: nn.Module) -> Training:
    return _adamw(_ddp(model), model)


def ddp_zero(model: nn.Module) -> Training:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return Training(_ddp(model), ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAMW))


def fairscale_ddp(model: nn.Module) -> Training:
    from fairscale.optim import OSS

    return Training(_ddp(model), OSS(model.parameters(), torch.optim.AdamW, **ADAMW))


def fairscale_sharded(model: nn.Module) -> Training:
    from fairscale.nn import ShardedDataParallel
    from fairscale.optim import OSS

    optimizer = OSS(model.parameters(), torch.optim.AdamW, **ADAMW)
    parallel = ShardedDataParallel(model, optimizer)
    # As its tutorial has it: gradients are views of buckets, which the optimizer's zero_grad would cut off.
    return Training(parallel, optimizer, zero_grad=parallel.zero_grad)


def _fsdp(model: nn.Module, reshard: bool) -> Training:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return _adamw(model, model)


def fsdp(model: nn.Module) -> Training:
    return _fsdp(model, reshard=False)


def fsdp_reshard(model: nn.Module) -> Training:
    return _fsdp(model, reshard=True)


def _deepspeed(model: nn.Module, stage: int) -> Training:
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,  # which it would clip to 1
    }
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return Training(engine, optimizer, backward=engine.backward, step=engine.step)


def deepspeed_1(model: nn.Module) -> Training:
    return _deepspeed(model, 1)


def deepspeed_2(model: nn.Module) -> Training:
    return _deepspeed(model, 2)


def replicated(model: nn.Module, **options: Any) -> Training:
    from fairshard.nn.data_parallel import ShardedDataParallel

    return _adamw(ShardedDataParallel(model, **options), model)


def sharded(model: nn.Module, mode: str = "gradients", reduce_dtype: torch.dtype | None = None, **oss: Any) -> Training:
    from fairshard.nn.data_parallel import ShardedDataParallel
    from fairshard.optim import OSS

    optimizer = OSS(model.parameters(), torch.optim.AdamW, **oss, **ADAMW)
    parallel = ShardedDataParallel(model, optimizer, mode=mode, reduce_dtype=reduce_dtype)
    return Training(parallel, optimizer, finish=optimizer.wait_for_parameters)


def optimizer(model: nn.Module) -> Training:
    return sharded(model, mode="optimizer")


def gradients(model: nn.Module) -> Training:
    return sharded(model)


def overlap(model: nn.Module) -> Training:
    return sharded(model, overlap_gather=True)


def in_backward(model: nn.Module) -> Training:
    return sharded(model, step_in_backward=True)


def released(model: nn.Module) -> Training:
    return sharded(model, step_in_backward=True, release_parameters=True)


def released_overlap(model: nn.Module) -> Training:
    training = sharded(model, step_in_backward=True, release_parameters=True, overlap_gather=True)
    training.finish = lambda: None  # to bring all parameters back is no part of a step
    return training


def bf16_gradients(model: nn.Module) -> Training:
    return sharded(model, reduce_dtype=torch.bfloat16)


def bf16_wire(model: nn.Module) -> Training:
    return sharded(model, reduce_dtype=torch.bfloat16, gather_dtype=torch.bfloat16)


def bf16_overlap(model: nn.Module) -> Training:
    return sharded(model, reduce_dtype=torch.bfloat16, gather_dtype=torch.bfloat16, overlap_gather=True)


def bf16_in_backward(model: nn.Module) -> Training:
    return sharded(model, reduce_dtype=torch.bfloat16, gather_dtype=torch.bfloat16, step_in_backward=True)


def wrapped_sgd(model: nn.Module, wrap: Callable = lambda optimizer: optimizer, **oss: Any) -> Training:
    from fairshard.nn.data_parallel import ShardedDataParallel
    from fairshard.optim import OSS

    optimizer = wrap(OSS(model.parameters(), torch.optim.SGD, **oss, **SGD))
    return Training(ShardedDataParallel(model, optimizer), optimizer)


def sgd(model: nn.Module) -> Training:
    return wrapped_sgd(model)


def adascale(model: nn.Module) -> Training:
    from fairshard.optim import AdaScale

    return wrapped_sgd(model, AdaScale)


def scaled(training: Training, scaler: Any) -> Training:
    optimizer = training.optimizer

    def step() -> None:
        scaler.step(optimizer)
        scaler.update()

    return Training(
        training.forward, optimizer, lambda loss: scaler.scale(loss).backward(), step, finish=training.finish
    )


def gradients_scaled(model: nn.Module) -> Training:
    from fairshard.optim.grad_scaler import ShardedGradScaler

    return scaled(gradients(model), ShardedGradScaler())


def ddp_scaled(model: nn.Module) -> Training:
    return scaled(ddp(model), torch.amp.GradScaler("cpu"))


@dataclass(frozen=True)
class System:
    label: str
    #: None for a program in C++, which is told the system's name.
    make: Callable[[nn.Module], Training] | None
    #: How far its loss may be from the others', relative to them.
    tolerance: float = 1e-3
    #: What it loads; loading does not count as its memory.
    imports: tuple[str, ...] = ()
    is_ours: bool = False
    #: Systems with the same one must have the same losses.
    optimizer: str = "AdamW"


def _ours(label: str, make: Callable | None, tolerance: float = 1e-3, optimizer: str = "AdamW") -> System:
    imports = "fairshard.optim", "fairshard.nn.data_parallel"
    return System(f"ours, {label}", make, tolerance, imports, is_ours=True, optimizer=optimizer)


_FAIRSCALE = "fairscale.optim", "fairscale.nn"


SYSTEMS = {
    "ddp": System("DDP", ddp),
    "ddp+zero": System("DDP + ZeroRedundancyOptimizer", ddp_zero),
    "fairscale-ddp": System("FairScale OSS + DDP", fairscale_ddp, imports=_FAIRSCALE),
    "fairscale-sharded": System("FairScale OSS + ShardedDDP", fairscale_sharded, imports=_FAIRSCALE),
    "fsdp": System("FSDP2, no resharding", fsdp),
    "fsdp-reshard": System("FSDP2, resharding", fsdp_reshard),
    "deepspeed-1": System("DeepSpeed ZeRO-1", deepspeed_1, imports=("deepspeed",)),
    "deepspeed-2": System("DeepSpeed ZeRO-2", deepspeed_2, imports=("deepspeed",)),
    "replicated": _ours("replicated", replicated),
    "optimizer": _ours("optimizer", optimizer),
    "gradients": _ours("gradients", gradients),
    "overlap": _ours("gradients, `overlap_gather`", overlap),
    "in-backward": _ours("gradients, `step_in_backward`", in_backward),
    "released": _ours("gradients, `step_in_backward`, `release_parameters`", released),
    "released-overlap": _ours(
        "gradients, `step_in_backward`, `release_parameters`, `overlap_gather`", released_overlap
    ),
    "cpp-replicated": _ours("replicated, C++", None),
    "cpp-optimizer": _ours("optimizer, C++", None),
    "cpp-gradients": _ours("gradients, C++", None),
    "cpp-in-backward": _ours("gradients, `step_in_backward`, C++", None),
    "bf16-gradients": _ours("gradients, bfloat16 gradients on the wire", bf16_gradients, 1e-2),
    "bf16-wire": _ours("all in bfloat16 on the wire", bf16_wire, 1e-2),
    "bf16-overlap": _ours("all in bfloat16 on the wire, `overlap_gather`", bf16_overlap, 1e-2),
    "bf16-in-backward": _ours("all in bfloat16 on the wire, `step_in_backward`", bf16_in_backward, 1e-2),
    "sgd": _ours("gradients, SGD", sgd, optimizer="SGD"),
    "adascale": _ours("gradients, SGD with AdaScale", adascale, optimizer="SGD"),
    "gradients-scaled": _ours("gradients, ShardedGradScaler", gradients_scaled),
    "ddp-scaled": System("DDP, torch.amp.GradScaler", ddp_scaled),
    "alone": System("not wrapped", alone),
}
TORCH = ["ddp", "ddp+zero"]
#: Our modes, in Python.
OURS = ["replicated", "optimizer", "gradients", "overlap", "in-backward", "released", "released-overlap"]
