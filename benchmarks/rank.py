"""One rank of a benchmark: trains with one system and writes what it measured."""

import argparse
import json
import os
import time
from pathlib import Path

import memory
import torch
import torch.distributed as dist
from gpt import Gpt
from systems import SYSTEMS


def sent_bytes(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--interface", default="lo")
    parser.add_argument("--model", default="60m")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    options = parser.parse_args()

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.ranks))
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    store = dist.FileStore(str(options.folder / "store"), options.ranks)
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.ranks)

    torch.manual_seed(0)
    model = Gpt(options.model, options.length)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    generator = torch.Generator().manual_seed(1 + options.rank)
    texts = torch.randint(256, (options.batch, options.length + 1), generator=generator)
    bare = memory.resident()
    memory.reset_peak()

    parallel, optimizer = SYSTEMS[options.system](model)
    times = []
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            dist.barrier()
            sent = sent_bytes(options.interface)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = parallel(texts)
        loss.backward()
        optimizer.step()
        if step >= options.warmup:
            times.append(time.perf_counter() - start)
    if hasattr(optimizer, "wait_for_parameters"):
        optimizer.wait_for_parameters()
    dist.barrier()
    result = {
        "parameters": parameters,
        "times": times,
        "sent": (sent_bytes(options.interface) - sent) / options.steps,
        "bare": bare,
        "peak": memory.peak(),
        "loss": loss.item(),
    }
    (options.folder / f"{options.rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
