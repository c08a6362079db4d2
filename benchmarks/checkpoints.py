"""How fast checkpoints are saved and loaded, against dd of the same bytes on the same disk.

python benchmarks/checkpoints.py --folder /where/the/disk/is --mb 1024 --ranks 2 --rounds 5

The state is that of AdamW in float32: weights and two moments, the moments sharded over the ranks. In every round dd
writes (conv=fsync) and reads as many bytes as the checkpoint has, in as many processes as there are ranks; reading is
from the disk, as far as the kernel lets go of what it has cached. An OSS has it all in place, so only state that is
there anyway is written.
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
import torch.multiprocessing as mp

from fairshard.checkpoint import Checkpoint, latest
from fairshard.optim import OSS


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
    results = {"save": [], "call": [], "load": [], "load_cached": [], "dd_write": [], "dd_read": []}
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
    if rank == 0:
        Path(f"{folder}/results.json").write_text(json.dumps({"bytes": size, **results}))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="a folder on the disk that is measured (default: the temporary)")
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        mp.spawn(rank_main, (arguments, folder), arguments.ranks)
        results = json.loads(Path(f"{folder}/results.json").read_text())
    size = results.pop("bytes")
    seconds = {name: statistics.median(times) for name, times in results.items()}
    print(f"{size / 2**20:.0f} MiB, {arguments.ranks} ranks, medians of {arguments.rounds} rounds")
    for name, reference in (
        ("dd_write", "dd_write"),
        ("save", "dd_write"),
        ("call", "dd_write"),
        ("dd_read", "dd_write"),
        ("load", "dd_read"),
        ("load", "dd_write"),
        ("load_cached", "dd_write"),
    ):
        ratio = seconds[reference] / seconds[name]
        print(f"{name:12} {seconds[name]:7.3f} s {size / seconds[name] / 1e6:8.0f} MB/s  {ratio:6.2f} x {reference}")


if __name__ == "__main__":
    main()
