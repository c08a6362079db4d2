"""Runs systems in fresh processes, in turn, for some rounds, and lets a time count only if the loss is right.

Ranks in Python are forked from a server that has imported torch and done nothing else: that takes milliseconds, where
an import takes seconds.
"""

import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import rank as python_rank
from links import inside
from models import write_for_cpp
from systems import SYSTEMS

HERE = Path(__file__).parent
CPP_PROGRAM = HERE.parent / "build/bin/fairshard-bench-gpt"
TIMEOUT_S = 300
CLOSE = 1.12


_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["rank", *python_rank.LAZY])


class RankError(RuntimeError):
    """A rank ended badly."""


@dataclass(frozen=True)
class Work:
    """What every system does."""

    model: str
    ranks: int
    batch: int
    steps: int
    warmup: int = 2
    rounds: int = 3
    #: Of those systems that are CLOSE to the fastest then: machines are noisy, and here it matters.
    more_rounds: int = 6


@dataclass(frozen=True)
class Place:
    """For every rank its network (see links.py), and the interface over which ranks speak."""

    networks: list[str | None]
    interface: str = "lo"
    #: Whether the interface counts what all ranks send, as one loopback does.
    is_shared: bool = True


def run(system: str, work: Work, place: Place, purpose: str = "time") -> list[dict]:
    """One system in fresh processes; returns every rank's figures."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"system": system, "ranks": work.ranks, "folder": folder, "interface": place.interface}
        # A third step has everything that later ones have, too.
        counts = {"steps": work.steps, "warmup": work.warmup} if purpose == "time" else {"steps": 1, "warmup": 2}
        settings |= {"model": work.model, "batch": work.batch, **counts, "purpose": purpose}
        start = _Forked
        if SYSTEMS[system].make is None:
            start = _start_cpp
            settings["model"] = f"{folder}/model.safetensors"
            write_for_cpp(work.model, work.batch, work.ranks, Path(settings["model"]))
        flags = [f"--{name}={value}" for name, value in settings.items()]
        logs = [Path(folder) / f"{rank}.log" for rank in range(work.ranks)]
        # DeepSpeed wants to see a LOCAL_RANK.
        environment = {"GLOO_SOCKET_IFNAME": place.interface, "DS_ACCELERATOR": "cpu"}
        processes = [
            start([f"--rank={rank}", *flags], network, environment | {"LOCAL_RANK": str(rank)}, log)
            for rank, (network, log) in enumerate(zip(place.networks, logs, strict=True))
        ]
        _wait_for_all(system, processes, logs)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(work.ranks)]


class _Forked:
    """A rank in Python, with what is needed here of a Popen."""

    def __init__(self, flags: list[str], network: str | None, environment: dict[str, str], log: Path) -> None:
        arguments = (flags, network, environment, log)
        self._process = _FORKED.Process(target=python_rank.run_forked, args=arguments)
        self._process.start()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a rank", timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _start_cpp(flags: list[str], network: str | None, environment: dict[str, str], log: Path) -> subprocess.Popen:
    with log.open("w") as file:
        command = [*inside(network), CPP_PROGRAM, *flags]
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=file, stderr=file)


def _wait_for_all(system: str, processes: list, logs: list[Path]) -> None:
    try:
        codes = [process.wait(TIMEOUT_S) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [f"no end after {TIMEOUT_S} s"]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        lines = [line for log in logs for line in log.read_text().strip().splitlines()[-12:]]
        raise RankError(f"{system}: ranks ended with {codes}:\n" + "\n".join(lines))


def compare(systems: Iterable[str], work: Work, place: Place) -> dict:
    """Figures for each system, and for each that has none the reason."""
    memory, runs, not_run = {}, {}, {}
    for number in range(-1, work.rounds + work.more_rounds):  # the first is for memory
        order = [name for name in systems if name not in not_run]
        if number >= work.rounds:
            order = close_to_fastest({name: runs[name][: work.rounds] for name in order})
        for name in in_turn(order, max(number, 0)):
            try:
                ranks = run(name, work, place, "time" if number >= 0 else "memory")
            except RankError as error:
                not_run[name] = _reason(name, error)
                continue
            if number < 0:
                memory[name] = ranks
            else:
                runs.setdefault(name, []).append(ranks)
            print(f"{'memory' if number < 0 else f'round {number + 1}'}: {name}", file=sys.stderr, flush=True)
    figures = {name: _summary(runs[name], memory[name], place) for name in systems if name not in not_run}
    _check_losses(figures, not_run)
    return {"work": asdict(work), "systems": figures, "not_run": not_run}


def compare_memory(systems: Iterable[str], work: Work, place: Place) -> dict:
    """The peaks of each system: of the whole run, of its later steps, and with the allocator as it is."""
    figures, not_run = {}, {}
    for name in systems:
        try:
            ranks, as_it_is = run(name, work, place, "memory"), run(name, work, place, "resident")
        except RankError as error:
            not_run[name] = _reason(name, error)
            continue
        peaks = {key: _over_bare(ranks, key) for key in ("peak", "later_peak")}
        figures[name] = {**peaks, "resident": _over_bare(as_it_is, "peak"), "parameters": ranks[0]["parameters"]}
        print(f"memory: {name}", file=sys.stderr, flush=True)
    return {"work": asdict(work), "systems": figures, "not_run": not_run}


def _over_bare(ranks: list[dict], key: str) -> int:
    return max(rank[key] - rank["bare"] for rank in ranks)


def _reason(name: str, error: RankError) -> str:
    """Why a peer has no figures; of ours it is an error."""
    if SYSTEMS[name].is_ours:
        raise error
    print(error, file=sys.stderr, flush=True)
    return str(error).splitlines()[-1]


def in_turn(systems: list[str], number: int) -> list[str]:
    """The order of a round: each begins with another one, so that none is always the first."""
    start = number * 3 % max(len(systems), 1)
    return systems[start:] + systems[:start]


def close_to_fastest(runs: dict[str, list[list[dict]]]) -> list[str]:
    times = {name: statistics.median(_times(some)) for name, some in runs.items()}
    return [name for name in times if times[name] <= CLOSE * min(times.values())]


def _times(runs: list[list[dict]]) -> list[float]:
    """A round's milliseconds: the slowest rank's, since a step has ended when all have."""
    return [1e3 * max(statistics.median(rank["times"]) for rank in ranks) for ranks in runs]


def _summary(runs: list[list[dict]], memory_run: list[dict], place: Place) -> dict:
    times = _times(runs)
    return {
        "ms": statistics.median(times),
        "rounds_ms": times,
        "memory": _over_bare(memory_run, "peak"),
        "sent": runs[-1][0]["sent"] / (len(runs[-1]) if place.is_shared else 1),
        "loss": [statistics.mean(rank["loss"] for rank in ranks) for ranks in runs],
        "parameters": runs[-1][0]["parameters"],
    }


def _check_losses(figures: dict, not_run: dict) -> None:
    """Takes figures away from systems whose losses are not those of most others with the same optimizer."""
    for name, reason in wrong_losses({name: row["loss"] for name, row in figures.items()}).items():
        if SYSTEMS[name].is_ours:
            raise RuntimeError(f"{name}: {reason} ({figures[name]['loss']})")
        not_run[name] = reason
        del figures[name]


def wrong_losses(losses: dict[str, list[float]], tolerance: float | None = None) -> dict[str, str]:
    """Systems with a loss that is not that of most others with the same optimizer, and what is to be said of them.

    How far it may be from theirs is each system's own matter, if no ``tolerance`` is given.
    """
    all_losses: dict[str, list[float]] = {}
    for name, values in losses.items():
        all_losses.setdefault(SYSTEMS[name].optimizer, []).extend(filter(math.isfinite, values))
    wrong = {}
    for name, values in losses.items():
        others = all_losses[SYSTEMS[name].optimizer]
        is_finite = all(map(math.isfinite, values))
        away = max(abs(value / statistics.median(others) - 1) for value in values) if is_finite else math.inf
        if away > (SYSTEMS[name].tolerance if tolerance is None else tolerance):
            wrong[name] = f"its loss is {away:.2%} away from the others', so that its time means nothing"
    return wrong
