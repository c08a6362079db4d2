"""What the tutorials leave open: ranks, a device, data, a model.

Digits of 8 x 8 pixels are made here (noisy copies of ten random patterns), so nothing is downloaded.
"""

import argparse
import os
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def dist_init(rank: int, world_size: int, folder: str, backend: str) -> torch.device:
    """Joins the ranks of this machine. Returns the device to use: over NCCL a GPU, else the CPU."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device("cuda", rank % torch.cuda.device_count()) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    return device


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def make_dataloader(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + rank)
    batches = []
    for _ in range(20):
        target = torch.randint(10, (32,), generator=generator)
        batches.append((patterns[target] + 0.5 * torch.randn(32, 64, generator=generator), target))
    return batches


def report(rank: int, losses: list[float], optimizer: torch.optim.Optimizer) -> None:
    """One line per rank: did it learn, and how much of the optimizer state does it have."""
    owned = sum(p.numel() for group in optimizer.optim.param_groups for p in group["params"])
    share = owned / sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    print(f"rank {rank}: loss {losses[0]:.2f} -> {losses[-1]:.2f}, owns {share:.0%} of the optimizer state", flush=True)


def spawn(train: Callable, description: str) -> None:
    """Runs ``train(rank, world_size, epochs, folder, backend)`` in processes, as many as the command line says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--backend", help="default: nccl if there are GPUs for all ranks, else gloo, on the CPU")
    options = parser.parse_args()
    world_size = options.world_size
    backend = options.backend or ("nccl" if torch.cuda.device_count() >= world_size else "gloo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(world_size, options.epochs, folder, backend), nprocs=world_size, join=True)
