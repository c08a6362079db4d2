"""Sharded training on GPUs over NCCL: ours and the peers', on the same work in one interleaved run.

    python benchmarks/gpu_training.py
    python benchmarks/gpu_training.py --rows 124m-2 --systems ddp gradients --rounds 1 --out trial.json    # to try it
    python benchmarks/gpu_training.py --device cpu --rows tiny-2 tiny-fake-8 --out trial.json              # without GPU

A row's ranks start once and train with each system in turn, for three rounds; a fresh model each time. A step's time
is that of many steps from one idle device to the next, on the slowest rank; the figure is the median over the rounds,
and counts only if the final loss is within 1 % of the others'. The host's time is how long Python is busy with a step
that begins on an idle device. Memory is what torch has allocated at most: in steady steps, and with the first ones.

Each rank has a GPU of its own if there are as many; otherwise they share, which NCCL must allow, and then only ratios
mean something. Rows named fake have one process in a group whose collectives do nothing, so that a step shows what a
wrapper itself costs; losses say nothing there. A system that fails has its reason in the results, and new ranks go on
without it. Results are written after every round; rows that the file has from other runs stay.
"""

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

import gpu_rank
import gpu_tables
import machine
from gpu_rank import Work
from harness import RankError, in_turn, wrong_losses
from systems import OURS, SYSTEMS, TORCH

PEERS = [*TORCH, "fsdp", "fsdp-reshard", "fairscale-sharded"]
#: DDP's hook wants a work of its own kind, which the fake group has not.
FAKE = ["alone", *(name for name in PEERS if name not in TORCH), *OURS]
TOLERANCE = 1e-2
TIMEOUT_S = 120
END_S = 20
RESULTS = machine.RESULTS / "gpu-training.json"
#: What CUDA has used cannot be forked.
_SPAWNED = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Row:
    work: Work
    systems: list[str]


# Batches are such that four ranks fit on one GPU together.
ROWS = {
    "124m-2": Row(Work("124m", ranks=2, batch=8, steps=15), [*PEERS, *OURS]),
    "350m-2": Row(Work("350m", ranks=2, batch=4, steps=10), [*PEERS, *OURS]),
    "124m-fake-8": Row(Work("124m", ranks=8, batch=8, steps=15, is_fake=True), FAKE),
    "124m-fake-8-small": Row(Work("124m", ranks=8, batch=1, length=128, steps=15, is_fake=True), FAKE),
    "124m-4": Row(Work("124m", ranks=4, batch=8, steps=8), [*PEERS, *OURS]),
    "350m-4": Row(Work("350m", ranks=4, batch=4, steps=8), [*PEERS, *OURS]),
    "tiny-2": Row(Work("tiny-tied", ranks=2, batch=2, length=16, steps=3), [*PEERS, *OURS]),
    "tiny-fake-8": Row(Work("tiny-tied", ranks=8, batch=2, length=16, steps=3, is_fake=True), FAKE),
}
MAIN = [name for name in ROWS if not name.startswith("tiny")]


class StartError(RankError):
    """A row's ranks could not begin."""


class Ranks:
    """The processes of a row, which train with one system after another. After a failure others take their places."""

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device
        self._processes: list = []
        self._connections: list[Connection] = []
        #: What they run on, once they have begun.
        self.where: dict | None = None

    def train(self, system: str) -> list[dict]:
        """Every rank's figures."""
        if not self._processes:
            self._start()
        return self._ask(system)

    def close(self) -> None:
        for connection in self._connections:
            _send(connection, None)
        self._end(END_S)

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self._work.processes):
            ours, theirs = _SPAWNED.Pipe()
            arguments = (theirs, self._work, rank, self._device, Path(self._folder.name))
            self._processes.append(_SPAWNED.Process(target=gpu_rank.serve, args=arguments, daemon=True))
            self._processes[-1].start()
            theirs.close()  # so that a rank's end is noticed
            self._connections.append(ours)
        try:
            self.where = self._replies()[0]
        except RankError as error:
            self._end(0)
            raise StartError(str(error)) from None

    def _ask(self, system: str) -> list[dict]:
        for connection in self._connections:
            _send(connection, system)
        try:
            return self._replies()
        except RankError:
            self._end(0)  # the others may wait for the one that failed, for ever
            raise

    def _end(self, patience_s: float) -> None:
        for process in self._processes:
            process.join(patience_s)
            process.kill()
            process.join()
        if self._processes:
            self._folder.cleanup()
        self._processes, self._connections = [], []

    def _replies(self) -> list[dict]:
        """Of every rank one, or the first reason that one has to give none."""
        replies: dict = {}
        while len(replies) < len(self._connections):
            ready = wait([c for c in self._connections if c not in replies], TIMEOUT_S)
            if not ready:
                raise RankError(f"no end after {TIMEOUT_S} s")
            for connection in ready:
                replies[connection] = self._reply(connection)
        return [replies[connection] for connection in self._connections]

    def _reply(self, connection: Connection) -> dict:
        try:
            reply = connection.recv()
        except (EOFError, OSError):
            rank = self._connections.index(connection)
            self._processes[rank].join(END_S)
            raise RankError(f"rank {rank} ended with {self._processes[rank].exitcode}") from None
        if "reason" in reply:
            raise RankError(reply["reason"])
        return reply


def _send(connection: Connection, message: str | None) -> None:
    """To a rank that may have ended: asked for its reply, it is missed."""
    with contextlib.suppress(OSError):
        connection.send(message)


def compare(row: Row, device: str) -> Iterator[dict]:
    """Gives the figures after every round: time on a GPU may end before the last."""
    runs: dict[str, list[list[dict]]] = {}
    not_run: dict[str, str] = {}
    ranks = Ranks(row.work, device)
    with contextlib.closing(ranks):
        for number in range(row.work.rounds):
            for name in in_turn([name for name in row.systems if name not in not_run], number):
                try:
                    runs.setdefault(name, []).append(ranks.train(name))
                    _say(f"round {number + 1}: {name}", runs[name][-1])
                except RankError as error:
                    is_start = isinstance(error, StartError)
                    not_run["all" if is_start else name] = str(error)
                    print(f"round {number + 1}: {name}: {error}", file=sys.stderr, flush=True)
                    if is_start:
                        break
            complete = {name: runs[name] for name in row.systems if runs.get(name) and name not in not_run}
            yield {"work": dataclasses.asdict(row.work), "where": ranks.where, **_summary(complete, not_run, row)}
            if "all" in not_run:
                return


def _say(what: str, ranks: list[dict]) -> None:
    ms, left = (max(rank[key] for rank in ranks) for key in ("ms", "left"))
    leaves = f", leaves {left / 1e6:.0f} MB behind" if left > 1e6 else ""
    print(f"{what}: {ms:.1f} ms{leaves}", file=sys.stderr, flush=True)


def _summary(runs: dict[str, list[list[dict]]], not_run: dict[str, str], row: Row) -> dict:
    """Of each system the median over the rounds, each of which is as its slowest rank."""
    systems = {}
    for name, rounds in runs.items():
        times, host = ([max(rank[key] for rank in ranks) for ranks in rounds] for key in ("ms", "host_ms"))
        peaks = {key: max(rank[key] for ranks in rounds for rank in ranks) for key in ("peak", "first_peak", "left")}
        systems[name] = {
            "ms": statistics.median(times),
            "rounds_ms": times,
            "host_ms": statistics.median(host),
            "rounds_host_ms": host,
            **peaks,
            "loss": [statistics.mean(rank["losses"][-1] for rank in ranks) for ranks in rounds],
        }
    losses = {name: figures["loss"] for name, figures in systems.items()}
    wrong = {} if row.work.is_fake else wrong_losses(losses, TOLERANCE)
    return {"systems": {name: systems[name] for name in systems if name not in wrong}, "not_run": not_run | wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=MAIN)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="instead of each row's own")
    for name in ("rounds", "steps"):
        parser.add_argument(f"--{name}", type=int, help="instead of the row's own")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is to try the program itself")
    parser.add_argument("--out", type=Path, help=f"where to write ({RESULTS.name}, if all is as it should be)")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here. To try this program itself: --device cpu --rows tiny-2 tiny-fake-8")
    changes = {key: value for key in ("rounds", "steps") if (value := getattr(options, key))}
    is_usual = options.device == "cuda" and not (options.systems or changes)
    out = options.out or (RESULTS if is_usual else None)
    rows = json.loads(out.read_text())["rows"] if out and out.exists() else {}
    about = machine.about()
    for name in options.rows:
        row = ROWS[name]
        systems = [s for s in options.systems or row.systems if not (row.work.is_fake and s in TORCH)]
        for figures in compare(Row(dataclasses.replace(row.work, **changes), systems), options.device):
            rows[name] = {"about": about, **figures}
            if out:
                machine.write(out.stem, {"rows": rows}, out.parent)
        print(gpu_tables.section(rows[name]), flush=True)


if __name__ == "__main__":
    main()
