"""Tables of gpu_training.py's rows, and beneath each what is wanted of ours and where it is missed."""

import statistics
from collections.abc import Iterator

import machine
from systems import SYSTEMS

#: Of ours the time, as a multiple of a peer's.
MOST_TIMES = [("replicated", "ddp", 1.00), ("gradients", "ddp+zero", 1.00), ("gradients", "ddp", 1.03)]
#: Of DDP's host time, for every mode.
MOST_HOST = 1.00
#: What a wrapper may itself cost, in a group whose collectives do nothing.
MOST_MS_ABOVE = 2.0


def section(row: dict) -> str:
    """A row's title, where it ran, its table and what is missed."""
    work = row["work"]
    group = "a fake group of" if work["is_fake"] else "over"
    title = (
        f"### GPT of {work['model']}, {group} {work['ranks']} ranks, batch {work['batch']} x {work['length']} a rank"
    )
    parts = [title, _where(row), _table(row), _wanted(row), machine.described(row["about"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def _where(row: dict) -> str:
    where, work = row["where"], row["work"]
    if where is None:
        return ""
    if where["device"] == "cpu":
        return "On the CPU: these figures mean nothing."
    versions = f"NCCL {where['nccl']}" + (", MPS" if where["mps"] else "")
    settings = " ".join(f"`{name}={value}`" for name, value in where["environment"].items())
    gpus = f"{where['devices']} x {where['device']} ({where['memory_gb']} GB)"
    if work["is_fake"]:
        return f"One process on {gpus}; collectives do nothing."
    share = "a GPU for each rank"
    if where["devices"] < work["ranks"]:
        share = f"{work['ranks']} ranks share {where['devices']}, so that only ratios mean something"
    return f"{gpus}: {share}; {versions}{', with ' + settings if settings else ''}."


def _table(row: dict) -> str:
    systems, not_run = row["systems"], dict(row["not_run"])
    if not systems:
        return f"Not run: {_cell(not_run.get('all') or '; '.join(f'{key}: {why}' for key, why in not_run.items()))}."
    base = "alone" if row["work"]["is_fake"] else "ddp"
    against = "ms above not wrapped" if base == "alone" else "x DDP"
    lines = [f"| | ms/step | range | {against} | host, ms | GB | GB, first steps too |", "| --- |" + " --- |" * 6]
    for name, found in systems.items():
        relative = ""
        if base in systems:
            relative = f"{_above(row, name):+.1f}" if base == "alone" else f"{_times(row, name, base):.2f}"
        low, high = min(found["rounds_ms"]), max(found["rounds_ms"])
        lines.append(
            f"| {label(name)} | {found['ms']:.1f} | {low:.1f}-{high:.1f} | {relative} | {found['host_ms']:.1f} "
            f"| {found['peak'] / 1e9:.2f} | {found['first_peak'] / 1e9:.2f} |"
        )
    for name, reason in not_run.items():
        who = "all others" if name == "all" else label(name)
        lines.append(f"| {who} | not run: {_cell(reason)} |" + " |" * 5)
    return "\n".join(lines)


def label(name: str) -> str:
    system = SYSTEMS[name]
    return f"**{system.label}**" if system.is_ours else system.label


def _cell(text: str) -> str:
    return text.replace("|", "/").rstrip(".")


def _times(row: dict, name: str, base: str, key: str = "rounds_ms") -> float:
    """How many times another's a figure is: the median over rounds, since what disturbs one disturbs both."""
    pairs = zip(row["systems"][name][key], row["systems"][base][key], strict=False)
    return statistics.median(own / other for own, other in pairs)


def _above(row: dict, name: str) -> float:
    pairs = zip(row["systems"][name]["rounds_ms"], row["systems"]["alone"]["rounds_ms"], strict=False)
    return statistics.median(own - other for own, other in pairs)


def _wanted(row: dict) -> str:
    found = _wanted_of_fake(row) if row["work"]["is_fake"] else _wanted_of_ranks(row)
    return "\n".join(f"- {'reached' if is_reached else '**missed**'}: {text}" for is_reached, text in found)


def _wanted_of_ranks(row: dict) -> Iterator[tuple[bool, str]]:
    """Figures are compared as they are printed."""
    systems = row["systems"]
    for name, base, most in MOST_TIMES:
        if name in systems and base in systems:
            times = round(_times(row, name, base), 2)
            yield times <= most, f"{name} takes {times:.2f} x {SYSTEMS[base].label} (at most {most:.2f})"
    yield from _least_memory(systems)
    if "ddp" in systems:
        host = {name: round(_times(row, name, "ddp", "rounds_host_ms"), 2) for name in _ours(systems)}
        each = ", ".join(f"{name} {times:.2f}" for name, times in host.items())
        if host:
            yield max(host.values()) <= MOST_HOST, f"host time, x DDP's: {each} (at most {MOST_HOST:.2f})"


def _least_memory(systems: dict) -> Iterator[tuple[bool, str]]:
    least = {
        is_ours: min((found["peak"], name) for name, found in systems.items() if SYSTEMS[name].is_ours == is_ours)
        for is_ours in {SYSTEMS[name].is_ours for name in systems}
    }
    if len(least) == 2 and least[True][0] > 0:
        (own, name), (other, base) = least[True], least[False]
        texts = f"{name} {own / 1e9:.2f} GB", f"{SYSTEMS[base].label} {other / 1e9:.2f} GB"
        yield own <= other, f"least memory of ours: {texts[0]}; of the others: {texts[1]}"


def _wanted_of_fake(row: dict) -> Iterator[tuple[bool, str]]:
    systems = row["systems"]
    if "alone" in systems and _ours(systems):
        above = {name: round(_above(row, name), 1) for name in _ours(systems)}
        each = ", ".join(f"{name} {ms:+.1f}" for name, ms in above.items())
        yield max(above.values()) <= MOST_MS_ABOVE, f"ms above not wrapped: {each} (at most {MOST_MS_ABOVE:.1f})"


def _ours(systems: dict) -> list[str]:
    return [name for name in systems if SYSTEMS[name].is_ours]
