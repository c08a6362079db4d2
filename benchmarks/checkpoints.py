"""How fast checkpoints are saved and loaded, against torch.save, torch.distributed.checkpoint and dd on the same disk.

python benchmarks/checkpoints.py --folder /where/the/disk/is --mb 1024 --ranks 2 --rounds 5

The state is that of AdamW in float32: weights and two moments, the moments sharded over the ranks. In every round dd
writes (conv=fsync) and reads as many bytes as the checkpoint has, in as many processes as there are ranks; reading is
from the disk, as far as the kernel lets go of what it has cached. An OSS has it all in place, so only state that is
there anyway is written. The peers write the same tensors: rank 0 the weights, every rank its moments; torch.save's
files are synced after they are written, as the others' are. What a peer has loaded must be what was saved.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

import machine
from fairshard.checkpoint import Checkpoint, latest
from fairshard.optim import OSS

MOMENTS = ("exp_avg", "exp_avg_sq")
NAMES = (
    "dd_write",
    "save",
    "call",
    "torch_save",
    "dcp_save",
    "dd_read",
    "load",
    "load_cached",
    "torch_load",
    "dcp_load",
)


def forget(folder: Path) -> None:
    """Lets the kernel drop what it has cached of the files."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def dd(folder: Path, ranks: int, size: int) -> tuple[float, float]:
    """Seconds to write and to read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    blocks = size // ranks >> 20

    def all_ranks(*options: str) -> None:
        commands = [["dd", "bs=1M", "status=none", *(o.format(f"{folder}/{i}") for o in options)] for i in range(ranks)]
        for process in [subprocess.Popen(command) for command in commands]:
            assert process.wait() == 0

    write = timed(lambda: all_ranks("if=/dev/urandom", "of={}.source", f"count={blocks}", "conv=fsync")) and timed(
        lambda: all_ranks("if={}.source", "of={}", "conv=fsync")
    )
    forget(folder)
    read = timed(lambda: all_ranks("if={}", "of=/dev/null"))
    shutil.rmtree(folder)
    return write, read


class TorchSave:
    """One file for each rank."""

    def __init__(self, folder: Path, weights: dict, moments: dict, rank: int) -> None:
        self._paths = [folder / "weights.pt", folder / f"{rank}.pt"]
        self._state = [weights, moments]
        self._is_first = rank == 0
        folder.mkdir(exist_ok=True)

    def save(self) -> None:
        for path, state in list(zip(self._paths, self._state, strict=True))[not self._is_first :]:
            with path.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        dist.barrier()

    def load(self) -> None:
        for path, state in zip(self._paths, self._state, strict=True):
            loaded = torch.load(path, weights_only=True)
            for key, tensor in state.items():
                tensor.copy_(loaded[key])


class TorchDistributed:
    """torch.distributed.checkpoint, which knows which ranks have the same tensor."""

    def __init__(self, folder: Path, weights: dict, moments: dict, rank: int) -> None:
        self._folder = folder
        self._state = weights | {f"rank{rank}.{key}": tensor for key, tensor in moments.items()}

    def save(self) -> None:
        writer = dcp.FileSystemWriter(self._folder, single_file_per_rank=True, sync_files=True)
        dcp.save(self._state, storage_writer=writer)

    def load(self) -> None:
        dcp.load(self._state, storage_reader=dcp.FileSystemReader(self._folder))


def measure_peer(name: str, peer, folder: Path, tensors: list[torch.Tensor], results: dict) -> None:
    """One round: what was saved must be back after loading."""
    sums = [tensor.double().sum().item() for tensor in tensors]
    dist.barrier()
    results[f"{name}_save"].append(timed(peer.save))
    dist.barrier()
    if dist.get_rank() == 0:
        forget(folder)
    for tensor in tensors:
        tensor.zero_()
    dist.barrier()
    results[f"{name}_load"].append(timed(peer.load))
    dist.barrier()
    if sums != [tensor.double().sum().item() for tensor in tensors]:
        raise RuntimeError(f"{name} has loaded something else than it had saved")


def rank_main(rank: int, arguments: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", arguments.ranks)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=store, rank=rank, world_size=arguments.ranks)
    layers, width = 16, round((arguments.mb * 2**20 / 3 / 4 / 16) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = OSS(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    home = Path(folder) / "checkpoints"
    checkpoint = Checkpoint(home, {"model": model, "optimizer": optimizer}, keep=1)
    checkpoint.save(0, blocking=False)  # makes the host buffers
    checkpoint.wait()
    weights = dict(model.state_dict())
    moments = {f"{i}.{key}": state[key] for i, state in enumerate(optimizer.optim.state.values()) for key in MOMENTS}
    peers = {
        "torch": TorchSave(Path(folder) / "torch", weights, moments, rank),
        "dcp": TorchDistributed(Path(folder) / "dcp", weights, moments, rank),
    }
    results = {name: [] for name in NAMES}
    for step in range(1, arguments.rounds + 1):
        size = sum(path.stat().st_size for path in Path(latest(home)).iterdir())
        if rank == 0:
            write, read = dd(Path(folder) / "dd", arguments.ranks, size)
            results["dd_write"].append(write)
            results["dd_read"].append(read)
        dist.barrier()
        results["save"].append(timed(lambda step=step: checkpoint.save(2 * step)))
        dist.barrier()
        results["call"].append(timed(lambda step=step: checkpoint.save(2 * step + 1, blocking=False)))
        checkpoint.wait()
        dist.barrier()
        if rank == 0:
            forget(home)
        dist.barrier()
        results["load"].append(timed(checkpoint.load))
        dist.barrier()
        results["load_cached"].append(timed(checkpoint.load))
        dist.barrier()
        for name, peer in peers.items():
            with torch.no_grad():
                measure_peer(name, peer, Path(folder) / name, [*weights.values(), *moments.values()], results)
    if rank == 0:
        Path(f"{folder}/results.json").write_text(json.dumps({"bytes": size, **results}))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="a folder on the disk that is measured (default: the temporary)")
    parser.add_argument("--mb", type=int, default=768)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", action="store_true", help="write benchmarks/results/checkpoints.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        mp.spawn(rank_main, (arguments, folder), arguments.ranks)
        results = json.loads(Path(f"{folder}/results.json").read_text())
    size = results.pop("bytes")
    print(f"{size / 2**20:.0f} MiB, {arguments.ranks} ranks, medians of {arguments.rounds} rounds")
    for name, times in results.items():
        median = statistics.median(times)
        print(f"{name:12} {median:7.3f} s ({min(times):.3f}-{max(times):.3f}) {size / median / 1e6:8.0f} MB/s")
    if arguments.out:
        settings = {"bytes": size, "ranks": arguments.ranks, "rounds": arguments.rounds}
        machine.write("checkpoints", {"work": settings, "seconds": results})


if __name__ == "__main__":
    main()
