"""One node (one rank) of slow_link.py: trains a GPT on text and writes what it saw."""

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairshard.experimental.nn.data_parallel import SlowMoDistributedDataParallel
from gpt import Gpt
from rank import sent_bytes

LENGTH = 64
_SLOWMO = {"slowmo_momentum": 0.2, "slowmo_frequency": 48}
_DILOCO = {"outer_optimizer": "nesterov", "slowmo_lr": 0.7, "slowmo_momentum": 0.9, "slowmo_frequency": 48}
SYSTEMS = {
    "DDP": None,
    "SlowMo, average every 3": {**_SLOWMO, "localsgd_frequency": 3},
    "SlowMo, average every 12": {**_SLOWMO, "localsgd_frequency": 12},
    "DiLoCo": _DILOCO,
    "streaming DiLoCo, int8": {**_DILOCO, "fragments": 4, "fragment_delay": 6, "local_weight": 0.5, "wire": "int8"},
}


def text() -> torch.Tensor:
    """Something to learn that every machine has: sources of Python's standard library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def batch(corpus: torch.Tensor, size: int, seed: int) -> torch.Tensor:
    starts = torch.randint(len(corpus) - LENGTH - 1, (size,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([corpus[start : start + LENGTH + 1] for start in starts]).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", required=True, choices=SYSTEMS)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--interface", default="veth0")
    parser.add_argument("--model", default="2m")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=240)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    store = dist.FileStore(str(options.folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=2)

    corpus = text()
    split = len(corpus) * 9 // 10
    torch.manual_seed(0)
    model = Gpt(options.model, LENGTH)
    settings = SYSTEMS[options.system]
    parallel = (
        DistributedDataParallel(model)
        if settings is None
        else SlowMoDistributedDataParallel(model, nprocs_per_node=1, **settings)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    dist.barrier()
    sent, start = sent_bytes(options.interface), time.perf_counter()
    curve = []
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = parallel(batch(corpus[:split], options.batch, 2 * step + options.rank))
        loss.backward()
        optimizer.step()
        if settings is not None:
            parallel.perform_slowmo(optimizer)
        curve.append((time.perf_counter() - start, loss.item()))
    dist.barrier()
    seconds = time.perf_counter() - start
    sent = sent_bytes(options.interface) - sent
    model.eval()
    with torch.no_grad():
        held_out = model(batch(corpus[split:], 256, 1)).item()
    result = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps_per_second": options.steps / seconds,
        "sent_per_step": sent / options.steps,
        "held_out_loss": held_out,
        "curve": curve,
    }
    (options.folder / f"{options.rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
