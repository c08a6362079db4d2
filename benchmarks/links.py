"""Networks of their own for local ranks: two namespaces joined by a link of a given rate, as two hosts are, or one with
a loopback that nobody else sends over, so that its counter counts the ranks' bytes only."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
NAMES = ("fairshard0", "fairshard1")


def _run(command: str) -> None:
    result = subprocess.run(command.split(), capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{command}: {result.stderr.strip()}")


def inside(name: str | None) -> list[str]:
    """The words that a command needs in front to run in a network."""
    return ["ip", "netns", "exec", name] if name else []


def enter(name: str | None) -> None:
    """Moves this process, which has no threads yet, to a network."""
    if name is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network {name}")


@contextlib.contextmanager
def slow_link(rate: str, names: tuple[str, str] = NAMES, delay: str | None = None) -> Iterator[list[str]]:
    """Gives, for each of two ranks, the network at its end of the link.

    A delay (of each direction, for instance "10ms") needs a kernel with netem.
    """
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    try:
        _run(f"ip link add veth0 netns {(_make(names[0]))} type veth peer name veth0 netns {_make(names[1])}")
        for number, name in enumerate(names):
            there = " ".join(inside(name))
            _run(f"{there} ip addr add 10.99.0.{number + 1}/24 dev veth0")
            _run(f"{there} ip link set veth0 up")
            _run(f"{there} ip link set lo up")
            _run(f"{there} tc qdisc add dev veth0 root handle 1: tbf rate {rate} burst 256kb latency 200ms")
            if delay:
                _run(f"{there} tc qdisc add dev veth0 parent 1:1 netem delay {delay} limit 10000")
        yield [*names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def cannot_make_links() -> str | None:
    """Why this machine cannot have a slow link, or nothing."""
    try:
        with slow_link("1gbit", (f"fairshard-try{os.getpid()}", f"fairshard-peer{os.getpid()}")):
            return None
    except (RuntimeError, FileNotFoundError) as error:
        return f"no network namespaces with a slow link here ({error})"


@contextlib.contextmanager
def private_loopback() -> Iterator[str | None]:
    """Gives a network of nothing but a loopback, or None (the machine's own) where the kernel does not permit it."""
    name = f"fairshard-lo-{os.getpid()}"
    try:
        _make(name)
        _run(" ".join([*inside(name), "ip link set lo up"]))
    except (RuntimeError, FileNotFoundError):
        yield None
        return
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _make(name: str) -> str:
    _run(f"ip netns add {name}")
    return name
