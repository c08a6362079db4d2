"""Logs as ``fairshard train --log`` writes them, without a training run."""

import json
import math
import random
from pathlib import Path

KINDS = {"weights": 43155716, "gradients": 21577858, "optimizer": 43155716, "buckets": 1575936, "activations": 9e7}


def run_line(name="gpt", ranks=2, first_step=1, steps=200, **options):
    """The line that begins a run, or a part of one that was resumed."""
    return {
        "kind": "run", "format": 1, "name": name, "options": {"shard": "gradients", "batch": 16, "lr": 0.001} | options,
        "ranks": ranks, "parameters": 10788929, "tokens_per_step": 2048, "device": "cpu", "torch": "2.11.0",
        "fairshard": "0.1.0", "first_step": first_step, "steps": steps,
    }  # fmt: skip


def step_line(step, time_s, speed=1.0, noise=random):
    """One step of a run that learns."""
    wall = 0.2 / speed * noise.uniform(0.95, 1.1)
    split = {"data": 0.005, "compute": 0.55, "link": 0.2, "optimizer": 0.2, "other": 0.045}
    return {
        "kind": "step", "step": step, "time_s": time_s + wall, "lr": 0.001, "tokens_per_s": 2048 / wall,
        "loss": 1.9 + 3.6 * math.exp(-step / 60) + noise.gauss(0, 0.05), "sent_bytes": 43155716,
        "split_s": {kind: part * wall for kind, part in split.items()},
    }  # fmt: skip


def memory_line(rank, step=10, **more):
    used = KINDS | more
    return {"kind": "memory", "step": step, "rank": rank, "bytes": used, "peak_bytes": 0.97 * sum(KINDS.values())}


def waits_line(step, *waited_s):
    """What each rank has waited since the line before."""
    return {"kind": "waits", "step": step, "waited_s": list(waited_s)}


def run_lines(name="gpt", ranks=2, steps=200, speed=1.0, seed=0, **options):
    """A whole run: steps, memory, validations, two checkpoints, an end."""
    noise = random.Random(seed)
    lines, time_s = [run_line(name, ranks, steps=steps, **options)], 0.0
    for step in range(1, steps + 1):
        lines.append(step_line(step, time_s, speed, noise))
        time_s = lines[-1]["time_s"]
        if step == 10:
            lines += [memory_line(rank) for rank in range(ranks)]
        if step % max(steps // 2, 1) == 0:
            lines.append(
                {"kind": "validation", "step": step, "time_s": time_s, "loss": 1.95 + 3 * math.exp(-step / 60)}
            )
            lines.append(
                {"kind": "event", "step": step, "time_s": time_s, "what": "saved", "detail": f"runs/{name}/{step}"}
            )
    return [*lines, {"kind": "end", "step": steps, "time_s": time_s, "reason": "done"}]


def write_log(path: Path, lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
