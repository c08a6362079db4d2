"""OffloadModel on a GPU: time and memory of a step beside what bounds them, and a picture of one step.

    python benchmarks/offload.py --out offload.json --trace trace.json --picture trace.svg

Rows: GPT blocks (layers x width), sequence 1024, checkpointed, AdamW with float32 weights on the host and bfloat16 on
the device. Bounds, each measured here: the GPU's compute with all weights on it; the link, by a pinned copy; the CPU
optimizer beside its own copies, by a batch that computes next to nothing. The trace opens in Perfetto.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fairshard.experimental.nn.offload import OffloadModel
from gpt import Block

ROWS = {
    "1.2b": (24, 2048, 8),
    "4b": (36, 3072, 8),
    "4b-large": (36, 3072, 32),
    "6b": (54, 3072, 8),
    "small": (4, 1024, 1),
    "tiny": (4, 64, 2),
}
LENGTH = 1024


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def make_model(layers: int, width: int) -> nn.Sequential:
    """Blocks with weights that are quick to make and train stably."""
    with torch.device("meta"):
        model = nn.Sequential(*[Block(width, max(width // 128, 1)) for _ in range(layers)])
    model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        if "norm" in name or "before" in name:
            nn.init.constant_(parameter, float(name.endswith("weight")))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            pattern = torch.randn(2**16) * 0.02 / math.sqrt(layers)
            parameter.data.view(-1).copy_(pattern.repeat(parameter.numel() // 2**16 + 1)[: parameter.numel()])
    return model


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target * 0.5).float().square().mean()


def measure(step, device: torch.device, steps: int) -> float:
    """Seconds a step, the best of several."""
    best = math.inf
    for number in range(steps + 1):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        if number > 0:
            best = min(best, time.perf_counter() - start)
    return best


def measure_run(step, finish, device: torch.device, steps: int) -> float:
    """Seconds a step, over all of a run, with what is left to do at its end."""
    step()
    finish()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    synchronize(device)
    return (time.perf_counter() - start) / steps


def compute_alone(layers: int, width: int, batch: int, length: int, device: torch.device, steps: int) -> float:
    """Forward and checkpointed backward with one block's weights, as often as there are layers."""
    block = make_model(1, width)[0].to(device, torch.bfloat16)
    x = torch.randn(batch, length, width, device=device, dtype=torch.bfloat16)

    def step() -> None:
        y = x
        for _ in range(layers):
            y = checkpoint(block, y, use_reentrant=False)
        y.float().square().mean().backward()
        block.zero_grad()

    return measure(step, device, steps)


def link_rate(device: torch.device) -> float:
    """Bytes a second to the device."""
    host = torch.empty(2**28, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(2**28, dtype=torch.uint8, device=device)
    return 2**28 / measure(lambda: there.copy_(host, non_blocking=True), device, 5)


def run_row(name: str, options: argparse.Namespace, device: torch.device) -> dict:
    layers, width, batch = ROWS[name]
    length = LENGTH if width > 1024 else 16
    compute_s = compute_alone(layers, width, batch, length, device, options.steps)
    torch.manual_seed(0)
    model = make_model(layers, width)
    elements = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    offload = OffloadModel(
        model,
        device,
        num_slices=layers,
        checkpoint_activation=True,
        param_dtype=torch.bfloat16,
        optimizer=optimizer,
        prefetch=options.prefetch,
        optimizer_threads=options.threads,
        offload_activations=options.offload_activations,
        overlap_forward=options.overlap_forward,
        record_spans=True,
    )
    target = torch.randn(batch, length, width, device=device, dtype=torch.bfloat16)
    losses = []

    def step(count: int = batch, tokens: int = length) -> None:
        some = target[:count, :tokens]
        loss = loss_of(offload(some), some)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    step()
    first_loss = losses[0].item()
    optimizer_s = measure_run(lambda: step(1, 8), offload.wait_for_step, device, 2)
    optimizer_rate = offload.report()["optimizer_elements"] / offload.report()["optimizer_s"]
    losses.clear()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step_s = measure_run(step, offload.wait_for_step, device, options.steps)
    offload.take_spans()
    step()
    offload.wait_for_step()
    synchronize(device)
    report = offload.report()
    bound = max(
        compute_s, elements / optimizer_rate, report["bytes_in"] / options.link, report["bytes_out"] / options.link
    )
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return {
        "row": name,
        "prefetch": options.prefetch,
        "offload_activations": options.offload_activations,
        "overlap_forward": options.overlap_forward,
        "parameters": elements,
        "step_ms": 1000 * step_s,
        "compute_ms": 1000 * compute_s,
        "link_in_ms": 1000 * report["bytes_in"] / options.link,
        "link_out_ms": 1000 * report["bytes_out"] / options.link,
        "optimizer_ms": 1000 * elements / optimizer_rate,
        "optimizer_step_ms": 1000 * optimizer_s,
        "optimizer_gparam_s": optimizer_rate / 1e9,
        "times_bound": step_s / bound,
        "wait_ms": 1000 * report["wait_s"],
        "device_gb": peak / 1e9,
        "host_bytes_a_parameter": report["host_bytes"] / elements,
        "first_loss": first_loss,
        "losses": [losses[0].item(), losses[-1].item()],
        "spans": offload.take_spans(),
    }


def write_trace(spans: list, path: str) -> None:
    tracks = sorted({track for track, *_ in spans})
    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": tracks.index(t), "args": {"name": t}} for t in tracks]
    for track, name, start, end in spans:
        event = {"ph": "X", "pid": 0, "tid": tracks.index(track), "name": name}
        events.append({**event, "ts": 1e6 * start, "dur": 1e6 * (end - start)})
    Path(path).write_text(json.dumps({"traceEvents": events}))


def draw(spans: list, title: str, path: Path) -> None:
    """An SVG picture: one line per track, time to the right."""
    tracks = {"copy in": "#2f5d8a", "compute": "#4c9f70", "copy out": "#6a8caf", "optimizer": "#b5651d"}
    begin, end = min(start for *_, start, _ in spans), max(end for *_, end in spans)
    scale = 1100 / (end - begin)
    parts = [f'<text x="90" y="16">{title}: {1000 * (end - begin):.0f} ms</text>']
    for row, (track, colour) in enumerate(tracks.items()):
        parts.append(f'<text x="4" y="{52 + 40 * row}">{track}</text>')
        for own, name, start, stop in spans:
            if own == track:
                x, width = 90 + scale * (start - begin), max(scale * (stop - start), 0.5)
                box = f'x="{x:.1f}" y="{32 + 40 * row}" width="{width:.1f}" height="30"'
                parts.append(
                    f'<rect {box} fill="{colour}" stroke="white" stroke-width="0.4"><title>{name}</title></rect>'
                )
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="200" font-family="sans-serif" font-size="13">'
    path.write_text("\n".join([head, *parts, "</svg>\n"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["1.2b", "4b", "4b-large"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--prefetch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    for name in ("--offload-activations", "--overlap-forward"):
        parser.add_argument(name, action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out")
    parser.add_argument("--trace")
    parser.add_argument("--picture")
    parser.add_argument("--device-limit-gib", type=float, help="the GPU memory that this process may take")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.device_limit_gib:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(options.device_limit_gib * 2**30 / total)
    options.link = link_rate(device)
    print(f"link {options.link / 1e9:.1f} GB/s")
    rows = []
    for name in options.rows:
        row = run_row(name, options, device)
        spans = row.pop("spans")
        rows.append(row)
        print(
            " ".join(
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
        )
        for kind, path in (("trace", options.trace), ("picture", options.picture)):
            if path:
                path = Path(path).with_stem(f"{Path(path).stem}-{name}")
                write_trace(spans, path) if kind == "trace" else draw(spans, f"one step, {name}", path)
    if options.out:
        Path(options.out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
