"""Memory of this process: resident, as Linux counts it, and in use, as the C library does."""

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


def own() -> int:
    """Resident memory without pages of files, which the system takes and brings back as it likes."""
    return _status("RssAnon") + _status("RssShmem")


class _Mallinfo(ctypes.Structure):
    """What glibc calls mallinfo2: ten sizes."""

    _fields_ = (
        *((f"other_{number}", ctypes.c_size_t) for number in range(4)),
        ("mapped", ctypes.c_size_t),
        *((f"other_{number}", ctypes.c_size_t) for number in range(4, 6)),
        ("taken", ctypes.c_size_t),
        *((f"other_{number}", ctypes.c_size_t) for number in range(6, 8)),
    )


def in_use() -> int:
    """Bytes of the C library's heap that were taken and not yet freed, in all threads, tensors' among them."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return found.taken + found.mapped


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
