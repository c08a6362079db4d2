"""Ranks that meet, wait, or are asked to end before they have: nothing stale is met, nothing is left behind."""

import os
import re
import signal
import socket
import time

import pytest

from support.running import Running
from support.trainer import mpirun, run, trainer, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture
def temporary(tmp_path):
    """A folder to be TMPDIR, in which nothing may be left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def slurm(rank, ranks=2, **more):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(ranks), "SLURM_LOCALID": str(rank)} | {
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        **more,
    }


def torchrun_variables(rank, port):
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def stores_in(folder):
    return [store for store in folder.glob("fairshard-*/store") if store.stat().st_size > 0]


def expect_good(*runs):
    for running in runs:
        code, _, errors = running.end()
        assert code == 0, errors


def test_a_requeued_slurm_job_does_not_meet_the_ranks_of_the_first(text, temporary):
    command = trainer(text, timeout_s=20)
    killed = Running(*command, TMPDIR=str(temporary), **slurm(0))
    killed.wait_until(lambda: stores_in(temporary))
    killed.process.kill()
    killed.end()
    again = {"SLURM_RESTART_COUNT": "1", "TMPDIR": str(temporary)}
    expect_good(*[Running(*command, **slurm(rank), **again) for rank in range(2)])
    assert len(list(temporary.iterdir())) == 1  # that of the killed one


def test_ranks_that_have_met_leave_nothing(text, temporary):
    """Even if they are killed: the next job of that name begins anew."""
    variables = {"TMPDIR": str(temporary)}
    ranks = [Running(*trainer(text, steps=1_000_000), **slurm(rank), **variables) for rank in range(2)]
    ranks[0].wait_for("step")
    assert list(temporary.iterdir()) == []
    for rank in ranks:
        rank.process.kill()
        rank.end()
    command = trainer(text, timeout_s=20)
    expect_good(*[Running(*command, **slurm(rank), **variables) for rank in range(2)])
    launched = Running(*trainer(text, steps=1_000_000, ranks=2), **variables)
    launched.wait_for("step")
    launched.process.kill()
    launched.end()
    assert list(temporary.iterdir()) == []


def test_mpirun_leaves_nothing(text, temporary):
    result = run(*mpirun(), "-n", "2", *trainer(text), TMPDIR=str(temporary))
    assert result.returncode == 0, result.stderr
    assert list(temporary.glob("fairshard*")) == []


def test_mpirun_through_a_shell(text, temporary):
    """Ranks whose parent is not mpirun meet as well."""
    words = " ".join(map(str, trainer(text, timeout_s=20)))
    result = run(*mpirun(), "-n", "2", "sh", "-c", f"{words}; exit $?", TMPDIR=str(temporary))
    assert result.returncode == 0, result.stderr


def test_the_timeout_is_kept_while_connecting(text, free_port):
    start = time.monotonic()
    result = run(*trainer(text, timeout_s=2), **torchrun_variables(1, free_port))
    assert result.returncode == 1
    assert "cannot reach the store at MASTER_ADDR=127.0.0.1" in result.stderr
    assert time.monotonic() - start < 2 + 20  # and a start of the program on a busy machine; else it would be minutes


def test_a_host_that_accepts_and_says_nothing_is_given_up_in_time(text):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        result = run(*trainer(text, timeout_s=2), **torchrun_variables(1, silent.getsockname()[1]))
    assert result.returncode == 1
    assert "no answer within 2" in result.stderr
    assert time.monotonic() - start < 2 + 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("launcher", ["Slurm", "torchrun"])
def test_a_rank_that_waits_for_others_can_be_ended(text, temporary, free_port, number, launcher):
    variables = slurm(0) if launcher == "Slurm" else torchrun_variables(0, free_port)
    waiting = Running(*trainer(text, timeout_s=90), TMPDIR=str(temporary), **variables)
    if launcher == "Slurm":
        waiting.wait_until(lambda: stores_in(temporary))
    else:
        waiting.wait_until(lambda: can_connect(free_port))
    waiting.process.send_signal(number)
    code, _, errors = waiting.end(timeout=20)
    assert code == 128 + number, errors
    assert f"ended by {number.name} before the first step; nothing was saved" in errors
    assert list(temporary.iterdir()) == []


def can_connect(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_setting_up_can_be_ended(text, temporary, number):
    """One rank is stopped while they meet, so that the other would wait for long."""
    running = Running(*trainer(text, ranks=2, timeout_s=90), TMPDIR=str(temporary))
    running.wait_until(lambda: len(running.ranks) == 2)
    stopped = running.ranks[1]
    os.kill(stopped, signal.SIGSTOP)
    running.process.send_signal(number)
    os.kill(stopped, signal.SIGCONT)
    code, _, errors = running.end(timeout=20)
    assert code == 128 + number, errors
    assert f"ended by {number.name} before the first step; nothing was saved" in errors
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", ["Ctrl-C", "kill -INT"])
def test_an_interrupt_saves_and_ends_well(text, tmp_path, temporary, kind):
    runs = tmp_path / "runs"
    running = Running(*trainer(text, steps=1_000_000, ranks=2, save=runs, save_every=0), TMPDIR=str(temporary))
    running.wait_for("step")
    if kind == "Ctrl-C":
        running.press_ctrl_c()
    else:
        running.process.send_signal(signal.SIGINT)
    code, _, errors = running.end()
    assert code == 0, errors
    step = int(re.search(r"ended by SIGINT after step (\d+), which was saved in", errors).group(1))
    assert [path.name for path in runs.iterdir()] == [f"step-{step:08}"]
    assert list(temporary.iterdir()) == []


def test_a_rank_that_hangs_can_be_ended_by_a_second_signal(text, temporary):
    running = Running(*trainer(text, steps=1_000_000, ranks=2, timeout_s=90), TMPDIR=str(temporary))
    running.wait_for("step")
    ranks = running.ranks
    os.kill(ranks[1], signal.SIGSTOP)  # the other waits for it
    running.process.send_signal(signal.SIGTERM)
    running.wait_for("SIGTERM: ends after this step; a second one ends at once")
    while not running.has_ended():  # those that follow the first too soon are its echo
        running.process.send_signal(signal.SIGTERM)
    code, _, errors = running.end(timeout=20)
    assert code in (128 + signal.SIGTERM, -signal.SIGTERM), errors
    assert "ended by a second SIGTERM; steps since the last checkpoint are lost" in errors
