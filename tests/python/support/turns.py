"""Several workers (pytest-xdist) run tests beside each other; one marked ``alone`` has the machine to itself."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class Turns:
    """Locks on two files of a folder that all workers share: many tests at a time, or one that is alone."""

    def __init__(self, folder: str):
        self._door, self._room = ((Path(folder) / name).open("w") for name in ("door", "room"))

    @contextlib.contextmanager
    def taken(self, is_alone: bool) -> Iterator[None]:
        """Waits for the turn, and ends it."""
        # Who waits to be alone keeps the door shut: else the others would take turns, and never leave the room empty.
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
