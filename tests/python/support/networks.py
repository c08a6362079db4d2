"""Ranks on machines of their own, as far as the network goes: namespaces whose ports lead to one switch.

No root is needed where the kernel lets users have namespaces; nothing of it outlives the ranks.
"""

import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from support.trainer import environment

_UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts"]


class Ended(NamedTuple):
    """How a rank has ended, and what it has written."""

    code: int
    stdout: str
    stderr: str


def address_of(rank: int) -> str:
    """Where a rank listens: the first address of its eth0."""
    return f"10.99.0.{rank + 1}"


def meeting_address_of(rank: int) -> str:
    """By which it reaches the store, which must be there even where links are spoilt: the second one."""
    return f"10.98.0.{rank + 1}"


def _script(rate: str, setup: list[str], command: list[str], folder: Path, variables: list[dict], limit_s: int) -> str:
    """What makes the networks, runs a rank in each, and writes how they have ended.

    Every port sends at ``rate``, so that a busy machine does not look like a slow link.
    """
    ranks = len(variables)
    lines = ["set -e", "mount -t tmpfs none /run", "ip link set lo up"]
    lines += ["ip link add switch type bridge", "ip link set switch up"]
    for rank in range(ranks):
        here = f"ip -n rank{rank}"
        lines += [
            f"ip netns add rank{rank}",
            f"ip link add port{rank} type veth peer name eth0 netns rank{rank}",
            f"ip link set port{rank} master switch up",
            f"{here} link set lo up",
            f"{here} addr add {address_of(rank)}/24 dev eth0",
            f"{here} addr add {meeting_address_of(rank)}/24 dev eth0",
            f"{here} link set eth0 up",
            f"tc -n rank{rank} qdisc add dev eth0 root tbf rate {rate} burst 256kb latency 50ms",
        ]
    lines += setup
    for rank in range(ranks):
        own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        own |= {"MASTER_ADDR": meeting_address_of(0), "MASTER_PORT": 29500} | variables[rank]
        words = ["ip", "netns", "exec", f"rank{rank}", "env"]
        words += [f"--unset={name}" for name, value in own.items() if value == ""]
        words += [f"{name}={value}" for name, value in own.items() if value != ""]
        words += ["timeout", str(limit_s), *map(str, command)]
        files = f">{folder}/{rank}.out 2>{folder}/{rank}.err"
        lines.append(f"(code=0; {shlex.join(words)} {files} || code=$?; echo $code >{folder}/{rank}.code) &")
    return "\n".join([*lines, "wait"])


def run_ranks(
    ranks: int,
    *command: object,
    rate: str = "100mbit",
    setup: tuple[str, ...] = (),
    variables: dict[int, dict] | None = None,
    limit_s: int = 60,
) -> list[Ended]:
    """Runs a command as each rank, as torchrun would; ``setup`` are commands that spoil the networks before.

    ``variables`` are of single ranks; one that is empty is not set. After ``limit_s`` ranks are ended. Fails if this
    machine cannot have such networks.
    """
    each = [{"GLOO_SOCKET_IFNAME": "eth0"} | (variables or {}).get(rank, {}) for rank in range(ranks)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = _script(rate, list(setup), list(command), folder, each, limit_s)
        result = subprocess.run(
            [*_UNSHARE, "bash", "-c", script], env=environment(), capture_output=True, text=True, timeout=limit_s + 40
        )
        assert result.returncode == 0, (
            f"no network namespaces here, which these tests need (iproute2 with bridges and tbf, and user namespaces; "
            f"pytest -m 'not networks' leaves them out): {result.stderr}"
        )
        read = [
            {kind: (folder / f"{rank}.{kind}").read_text() for kind in ("code", "out", "err")} for rank in range(ranks)
        ]
    return [Ended(int(own["code"]), own["out"], own["err"]) for own in read]
