"""One system of offload_training.py in a fresh process: trains one of offload.py's rows and prints figures as JSON."""

import argparse
import json
import os
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from offload import LENGTH, ROWS, link_rate, loss_of, make_model, measure, run_row

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ADAMW = {"lr": 1e-4, "fused": True}


class Checkpointed(nn.Module):
    """Runs blocks one after another and computes each again in backward."""

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def one_rank_group() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = tempfile.mkdtemp()
    backend = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)


def in_autocast(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return module(x.float())

    return forward


def on_device(model: nn.Sequential) -> tuple:
    """Everything on the device: what offloading would like to be as fast as."""
    master = [parameter.detach().float() for parameter in model.to(DEVICE).parameters()]
    model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(master, **ADAMW)
    wrapped = Checkpointed(model)

    def step() -> None:
        for exact, parameter in zip(master, model.parameters(), strict=True):
            exact.grad = parameter.grad.float()
        optimizer.step()
        for exact, parameter in zip(master, model.parameters(), strict=True):
            parameter.data.copy_(exact)
            parameter.grad = None

    return wrapped, lambda loss: loss.backward(), step


def fsdp(model: nn.Sequential) -> tuple:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    one_rank_group()
    policies = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
        "offload_policy": CPUOffloadPolicy(),
    }
    for block in model:
        fully_shard(block, **policies)
    wrapped = fully_shard(Checkpointed(model), **policies)
    optimizer = torch.optim.AdamW(wrapped.parameters(), **ADAMW)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return wrapped, lambda loss: loss.backward(), step


def fairscale(model: nn.Sequential) -> tuple:
    from fairscale.experimental.nn.offload import OffloadModel

    wrapped = OffloadModel(model, DEVICE, torch.device("cpu"), num_slices=len(model), checkpoint_activation=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), **ADAMW)

    def step() -> None:
        torch.cuda.synchronize()
        optimizer.step()
        optimizer.zero_grad()

    return in_autocast(wrapped), lambda loss: loss.backward(), step


def deepspeed(model: nn.Sequential) -> tuple:
    import deepspeed as ds
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    os.environ["LOCAL_RANK"] = "0"  # it wants a launcher's
    one_rank_group()
    offload = {"device": "cpu", "pin_memory": True}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
        "gradient_clipping": 0.0,
    }
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=ADAMW["lr"], weight_decay=0.01, adamw_mode=True)
    engine, *_ = ds.initialize(model=Checkpointed(model), optimizer=optimizer, config=config)
    return engine, engine.backward, engine.step


SYSTEMS = {"device": on_device, "fsdp": fsdp, "fairscale": fairscale, "deepspeed": deepspeed}
# Slices that are fetched ahead, and whether activations leave the device.
OURS = {"ours": (2, False), "ours-least": (1, True)}


def train(system: str, row: str, steps: int) -> dict:
    layers, width, batch = ROWS[row]
    length = LENGTH if width > 1024 else 16
    torch.manual_seed(0)
    model = make_model(layers, width)
    elements = sum(parameter.numel() for parameter in model.parameters())
    target = torch.randn(batch, length, width, device=DEVICE, dtype=torch.bfloat16)
    forward, backward, step = SYSTEMS[system](model)
    losses = []

    def once() -> None:
        loss = loss_of(forward(target), target)
        backward(loss)
        step()
        losses.append(loss.detach())

    once()
    first_loss = losses.pop().item()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = measure(once, DEVICE, steps)
    peak = torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else 0
    return {
        "step_ms": 1e3 * seconds,
        "device_gb": peak / 1e9,
        "parameters": elements,
        "first_loss": first_loss,
        "losses": [x.item() for x in losses],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", choices=[*OURS, *SYSTEMS], required=True)
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if options.system in OURS:
        options.prefetch, options.offload_activations = OURS[options.system]
        options.threads, options.overlap_forward, options.link = 0, True, link_rate(DEVICE)
        figures = run_row(options.row, options, DEVICE)
        figures.pop("spans")
    else:
        figures = train(options.system, options.row, options.steps)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
