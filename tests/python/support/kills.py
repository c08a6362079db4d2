"""Kills a run with SIGKILL at random moments while it saves every few steps, and starts it again.

    python tests/python/support/kills.py --kills 200

Whatever the moment: the newest checkpoint loads, all of its checksums are good, and it is no older than the last one
that the run had reported as complete.
"""

import argparse
import collections
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).parents[3] / "build/bin/checkpointed_run"
BALLAST_MB = 8


class Run:
    """A run in processes of its own, whose lines are read as they come."""

    def __init__(self, folder: str, ranks: int) -> None:
        command = [PROGRAM, folder, str(ranks), str(10**9), "3", str(BALLAST_MB)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.pids: list[int] = []
        self.begin = -1
        self.saved = -1
        while self.begin < 0:
            self._take(self._process.stdout.readline())

    def _take(self, line: str) -> None:
        if not line:
            raise RuntimeError("the run has ended before it was killed")
        if found := re.match(r"rank \d+ process (\d+)", line):
            self.pids.append(int(found[1]))
        elif found := re.match(r"begins at (\d+)", line):
            self.begin = int(found[1])
        elif found := re.match(r"saved (\d+)", line):
            self.saved = int(found[1])

    def kill(self, victim: int | None) -> None:
        """Kills one rank, or all; returns when no process is left, and has read what they said."""
        if victim is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            os.kill(self.pids[victim], signal.SIGKILL)
        # the pipe ends when the last rank has: a rank that hangs would be noticed here
        rest, _ = self._process.communicate(timeout=60)
        for line in rest.splitlines():
            self._take(line)


def check(folder: str, last_saved: int) -> int:
    """The step of the newest checkpoint, after all of it was read. -1 if there is none."""
    from fairshard._core import store

    newest = store.latest_checkpoint(folder)
    if newest is None:
        assert last_saved <= 0, f"step {last_saved} was saved, but there is no checkpoint"
        return 0
    reader = store.Reader(newest)
    assert reader.step >= last_saved, f"step {last_saved} was saved, but the newest is {reader.step}"
    for key in reader.names_under(""):
        reader.read(key)
    assert reader.read("ballast").eq(reader.step).all(), f"step {reader.step} has the state of another"
    return reader.step


def kill_often(kills: int, seed: int, folder: str) -> dict[str, int]:
    """Returns how often what was seen."""
    chance = random.Random(seed)
    seen: collections.Counter[str] = collections.Counter()
    newest = 0
    for _ in range(kills):
        ranks = chance.choice((1, 2, 3))
        run = Run(folder, ranks)
        assert run.begin == newest, f"the run began at {run.begin}, not at the newest checkpoint {newest}"
        time.sleep(chance.uniform(0.0, 0.3))  # the moment is what is chosen at random
        run.kill(chance.choice((None, chance.randrange(ranks))))
        newest_before, newest = newest, check(folder, run.saved)
        names = os.listdir(folder)
        seen["kills"] += 1
        seen["left a temporary folder behind"] += any(name.endswith(".tmp") for name in names)
        seen["went on from where it began"] += newest == newest_before
        seen["had a newer checkpoint than it had reported"] += newest > max(run.saved, newest_before)
    seen["last step"] = newest
    return dict(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(kill_often(arguments.kills, arguments.seed, folder))


if __name__ == "__main__":
    main()
