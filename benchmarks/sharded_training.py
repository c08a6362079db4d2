"""Sharded training: ours and the peers', on the same work in one interleaved run.

    python benchmarks/sharded_training.py --rows 10m-2 conv-2
    python benchmarks/sharded_training.py --rows 10m-2 --systems ddp gradients --rounds 1    # to try something

Every system runs in fresh processes, in turn, for three rounds; with --full, those that come close to the fastest run
for six more. A step's time is the median over a run's steps, on the slowest rank; the figure is the median over the
rounds, and counts only if the final loss agrees with the others'. Memory is the peak of resident memory over the bare
model, in a run of its own in which freed blocks go back to the system at once. Rows of memory alone have that of the
later steps beside that of the whole run, and of a run that leaves the allocator as it is. Bytes are those that the
network interface counted. One file of results for each row.
"""

import argparse
import dataclasses
import signal
import sys

import machine
from harness import Place, Work, compare, compare_memory, run
from links import cannot_make_links, private_loopback, slow_link
from systems import OURS, SYSTEMS, TORCH

PEERS = [*TORCH, "fairscale-ddp", "fairscale-sharded", "fsdp", "fsdp-reshard", "deepspeed-1", "deepspeed-2"]
CPP = ["cpp-replicated", "cpp-optimizer", "cpp-gradients", "cpp-in-backward"]
NARROW = ["bf16-gradients", "bf16-wire"]


@dataclasses.dataclass(frozen=True)
class Row:
    work: Work
    systems: list[str]
    link: str | None = None
    is_of_memory: bool = False
    #: Left out unless every row is wanted, for the sake of time.
    long: tuple[str, ...] = ()


_10M = Work("10m", ranks=2, batch=4, steps=6)
_60M = Work("60m", ranks=2, batch=2, steps=4)
_CONV = Work("conv", ranks=2, batch=4, steps=6)
_LINK = [*TORCH, "fairscale-sharded", "fsdp", "fsdp-reshard", "replicated", "gradients", "overlap", "in-backward"]
_LINK += ["released-overlap", "bf16-wire", "bf16-overlap", "bf16-in-backward"]
_SLOW = ("fairscale-ddp", "deepspeed-1", "optimizer", "cpp-replicated", "cpp-optimizer")
_SLOWER = (*_SLOW, "fsdp", "deepspeed-2", "replicated", "overlap")
_SLOWEST = (*_SLOWER, "ddp+zero", "fairscale-sharded", *CPP, *NARROW)


def _on(work: Work, ranks: int) -> Work:
    return dataclasses.replace(work, ranks=ranks)


ROWS = {
    "10m-2": Row(_10M, [*PEERS, *OURS, *CPP], long=_SLOW),
    "conv-2": Row(_CONV, [*PEERS, *OURS], long=_SLOWER),
    "60m-2": Row(_60M, [*PEERS, *OURS, *CPP, *NARROW], long=_SLOWEST),
    "memory-60m-2": Row(_60M, [*PEERS, *OURS, *CPP], is_of_memory=True, long=_SLOW),
    "overheads": Row(
        _10M,
        ["sgd", "adascale", "gradients", "gradients-scaled", "ddp", "ddp-scaled"],
        long=("ddp", "ddp-scaled"),
    ),
    "10m-4": Row(_on(_10M, 4), [*PEERS, *OURS, *CPP]),
    "60m-4": Row(_on(_60M, 4), [*PEERS, *OURS, *CPP]),
    "conv-4": Row(_on(_CONV, 4), [*PEERS, *OURS]),
    "10m-2-1gbit": Row(_10M, _LINK, "1gbit"),
    "60m-2-1gbit": Row(_60M, _LINK, "1gbit"),
    "conv-2-1gbit": Row(_CONV, _LINK, "1gbit"),
    "tiny-2": Row(Work("tiny", ranks=2, batch=2, steps=2, rounds=1, more_rounds=0), [*PEERS, *OURS, *CPP]),
}
MAIN = ["10m-2", "conv-2", "60m-2", "memory-60m-2", "overheads"]
FULL = [name for name in ROWS if name != "tiny-2"]

#: Of a row, in bytes.
SIZES = ("memory", "sent", "peak", "later_peak", "resident")


def measure(name: str, row: Row) -> dict:
    if row.link and (reason := cannot_make_links()):
        return {"work": dataclasses.asdict(row.work), "systems": {}, "not_run": {"all": reason}}
    if row.is_of_memory:
        with private_loopback() as network:
            return {"row": name, **compare_memory(row.systems, row.work, Place([network] * row.work.ranks))}
    if row.link:
        with slow_link(row.link) as networks:
            figures = compare(row.systems, row.work, Place(networks, "veth0", is_shared=False))
    else:
        with private_loopback() as network:
            figures = compare(row.systems, row.work, Place([network] * row.work.ranks))
    # What one rank alone needs beside weights, gradients and states: for the formula of memory.
    alone = run("alone", dataclasses.replace(row.work, ranks=1), Place([None]), "memory")[0]
    return {"row": name, "link": row.link, **figures, "alone": alone["peak"] - alone["bare"]}


def printed(figures: dict) -> str:
    lines = []
    for name, row in figures["systems"].items():
        sizes = {key: f"{value / 1e6:.1f}" for key, value in row.items() if key in SIZES}
        if "ms" in row:
            sizes |= {"ms": f"{row['ms']:.1f}", "rounds": f"{min(row['rounds_ms']):.1f}-{max(row['rounds_ms']):.1f}"}
            sizes |= {"loss": f"{row['loss'][-1]:.5f}"}
        lines.append(f"{name:18s} " + "  ".join(f"{key} {value}" for key, value in sizes.items()))
    return "\n".join([*lines, *(f"{name}: not run: {reason}" for name, reason in figures["not_run"].items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=ROWS, help="only these")
    parser.add_argument("--full", action="store_true", help="every row, every system, more rounds")
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, help="only these")
    parser.add_argument("--write", action="store_true", help="results, though not of all of the row's systems")
    for name in ("rounds", "steps", "batch"):
        parser.add_argument(f"--{name}", type=int, help="instead of the row's own; writes no results")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that networks are taken away
    changes = {key: value for key in ("rounds", "steps", "batch") if (value := getattr(options, key))}
    more = {} if options.full and not options.rounds else {"more_rounds": 0}
    for name in options.rows or (FULL if options.full else MAIN):
        row = ROWS[name]
        systems = options.systems or [s for s in row.systems if options.full or s not in row.long]
        row = dataclasses.replace(row, work=dataclasses.replace(row.work, **changes, **more), systems=systems)
        figures = measure(name, row)
        print(f"{name}\n{printed(figures)}", flush=True)
        if not changes and (not options.systems or options.write) and name != "tiny-2":
            print(machine.write(f"sharded-{name}", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
