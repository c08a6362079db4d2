"""Resident memory of this process, as Linux counts it."""

import ctypes
from pathlib import Path

_M_MMAP_THRESHOLD = -3


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {key}")


def resident() -> int:
    return _status("VmRSS")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    return _status("VmHWM")


def keep_nothing() -> None:
    """From now on, blocks that are freed (but for the smallest) go back to the system at once."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 64 << 10)


def give_back() -> None:
    """Returns what the allocator holds free to the system, so that it does not count as in use."""
    ctypes.CDLL(None).malloc_trim(0)
