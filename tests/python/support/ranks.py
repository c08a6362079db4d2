"""Ranks as real processes over Gloo, for tests: no port, loopback only, errors come back."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Ranks are forked from a server that has imported what takes long, and has done nothing else.
multiprocessing.set_forkserver_preload(["torch._dynamo", "fairshard.nn.data_parallel", "pytest"])


def _run_rank(rank: int, world_size: int, folder: str, function: Callable, arguments: tuple) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        result = function(rank, world_size, *arguments)
        torch.save(result, f"{folder}/{rank}.pt")
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others notice at once, whatever they wait for
    dist.destroy_process_group()


def run_ranks(world_size: int, function: Callable, *arguments: object) -> list:
    """Runs ``function(rank, world_size, *arguments)`` in each of ``world_size`` processes.

    Returns what each returned, in rank order. Raises if one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (world_size, folder, function, arguments)
        mp.start_processes(_run_rank, arguments, nprocs=world_size, start_method="forkserver")
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(world_size)]
