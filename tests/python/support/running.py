"""A program that runs while a test looks at it."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from support.trainer import environment


class Running:
    """A run in a process group of its own, whose lines are read as they come."""

    def __init__(self, *command, **variables):
        self.process = subprocess.Popen(
            command,
            env=environment(**variables),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, words: str) -> None:
        """Returns when a line of stderr has these words."""
        lines = []
        while not lines or words not in lines[-1]:
            lines.append(self.process.stderr.readline())
            assert lines[-1], "".join(lines)

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """Returns when it is so; fails if the run ends before."""
        while not is_so():
            assert not self.has_ended(), self.process.stderr.read()

    def has_ended(self) -> bool:
        """Within a moment; whoever asks again and again leaves the processor to the run meanwhile."""
        try:
            self.process.wait(timeout=0.005)
        except subprocess.TimeoutExpired:
            return False
        return True

    def press_ctrl_c(self) -> None:
        """To all of its processes, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, timeout: float = 100) -> tuple[int, str, str]:
        """Waits for it: its code, its output and its errors."""
        output, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, output, errors

    @property
    def ranks(self) -> list[int]:
        """The processes that it has started."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
