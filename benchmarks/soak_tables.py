"""The table of docs/performance.md that says what a soak has found, and what its picture shows."""

import machine
from soak_modes import OURS, PEERS

LABELS = {"ddp": "DDP", "fsdp": "FSDP2", "cycles": "**made, trained twice and dropped, all modes**"}
#: What is counted in pieces, which stay the same to the last one.
PIECES = ("tensors", "threads", "descriptors", "keys")


def resident(modes: dict[str, dict]) -> dict[str, list[list[float]]]:
    """MiB of each mode's ranks, over the part of the run that is judged."""
    return {name: [[value / 2**20 for value in rank] for rank in found["resident"]] for name, found in modes.items()}


def table(modes: dict[str, dict]) -> str:
    rows = [
        "| | steps | resident, bytes a step | heap, bytes a step | Python objects in 1,000 steps "
        "| tensors, threads, descriptors, keys | time of a step, over the run | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = [*OURS, *PEERS]
    rows += [
        _row(name, modes[name]) if name in modes else f"| {_label(name)} | not run | | | | | | |" for name in names
    ]
    # Modes were run by different commands, all of them parts of this one.
    where = dict.fromkeys(machine.described(found["about"] | {"command": "make soak"}) for found in modes.values())
    return "\n".join(rows) + "\n\n" + "\n".join(where) + "\n"


def _label(name: str) -> str:
    return LABELS.get(name, f"**{name}**")


def _row(name: str, found: dict) -> str:
    judged = found["judged"]
    cells = [_label(name), f"{found['steps']:,}"]
    cells += [_cell(judged["resident"]), _cell(judged["heap"]), _cell(judged["objects"], 1e3)]
    moved = [f"{each} {_cell(judged[each], 1e3)} in 1,000 steps" for each in PIECES if judged[each]["slope"]]
    cells.append(", ".join(moved) or "the same")
    cells.append(f"{_cell(judged['cpu'], 100 * found['steps'])} %" if "cpu" in judged else "")
    grown = [quantity for quantity, each in judged.items() if each["grows"]]
    cells.append(f"**grows**: {', '.join(grown)}" if grown else "flat")
    return "| " + " | ".join(cells) + " |"


def _cell(judged: dict, times: float = 1) -> str:
    slope, error = judged["slope"] * times, judged["error"] * times
    digits = 0 if max(abs(slope), error) >= 10 else 2
    return f"{slope:+,.{digits}f} ± {error:,.{digits}f}" if slope or error else "0"
