"""`fairshard train` explains what its ranks wait for when SIGUSR1 comes."""

import os
import signal

import pytest

from support.running import Running
from support.trainer import torchrun, train, trainer, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


def read_until(running, words):
    """What it has said on stderr up to a line with these words."""
    lines = []
    while not lines or words not in lines[-1]:
        lines.append(running.process.stderr.readline())
        assert lines[-1], "".join(lines)
    return "".join(lines)


@pytest.mark.parametrize(
    "launcher", [(), tuple(torchrun("--standalone", "--nproc-per-node=2"))], ids=["own", "torchrun"]
)
def test_a_stopped_rank_is_named(text, launcher):
    own = {"ranks": 2} if not launcher else {}
    running = Running(*launcher, *trainer(text, steps=10**6, **own))
    running.wait_for(" 10/")
    first, second = running.ranks
    for rank in (first, second):  # by then they have said where they run
        os.kill(rank, signal.SIGUSR1)
        read_until(running, "verdict: ")
    os.kill(second, signal.SIGSTOP)
    os.kill(first if launcher else running.process.pid, signal.SIGUSR1)
    said = read_until(running, "verdict: ")
    assert "what the 2 ranks of a group wait for, as rank 0 has gathered it" in said
    assert f"verdict: rank 1 (pid {second} on " in said
    assert "is stopped, by a SIGSTOP or a debugger; all were last together in " in said
    os.kill(second, signal.SIGCONT)
    running.wait_for("0/")  # it goes on
    running.process.send_signal(signal.SIGTERM)
    code, _, errors = running.end()
    assert code == 0 or launcher, errors  # torchrun's own end


def test_the_log_has_what_each_rank_has_waited(text, tmp_path):
    log = train(text, tmp_path / "log.jsonl", ranks=3, batch=9, steps=20)
    lines = log.of_kind("waits")
    assert [line["step"] for line in lines] == [line["step"] for line in log.of_kind("memory") if line["rank"] == 0]
    assert all(len(line["waited_s"]) == 3 and min(line["waited_s"]) >= 0 for line in lines)
    in_steps = sum(log.steps[step]["split_s"]["link"] for step in range(1, lines[-1]["step"] + 1))
    assert sum(line["waited_s"][0] for line in lines) >= in_steps - 1e-6 > 0
