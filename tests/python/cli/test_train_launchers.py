"""The trainer learns the same under every launcher, and fails with a line and a code."""

import os
import re
import socket
import subprocess

import pytest

from support.trainer import mpirun, run, torchrun, trainer, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


def final_loss(result):
    assert result.returncode == 0, result.stderr
    return re.search(r"^final validation loss (\S+) nats/byte$", result.stdout, re.M).group(1)


def saved(result, name):
    """The last column of a row of the memory table, in percent."""
    assert result.returncode == 0, result.stderr
    return int(re.search(rf"^ *{name} .* (-?\d+) %$", result.stdout, re.M).group(1))


def test_launchers_agree_on_the_loss(text):
    command = trainer(text)
    launched = final_loss(run(*command, "--ranks=2"))
    assert final_loss(run(*torchrun("--nproc-per-node=2", "--standalone"), *command)) == launched
    assert final_loss(run(*mpirun(), "-n", "2", *command)) == launched


def test_srun_s_variables_are_understood(text):
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"} | {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_TASKS_PER_NODE": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
        "SLURM_STEP_NODELIST": "localhost",
    }
    assert final_loss(run(*trainer(text), **variables)) == final_loss(run(*trainer(text, ranks=1)))


def test_sharding_saves_memory_and_not_accuracy(text):
    results = {shard: run(*trainer(text, ranks=2, shard=shard)) for shard in ("none", "optimizer", "gradients")}
    assert len({final_loss(result) for result in results.values()}) == 1
    savings = {
        shard: (saved(result, "gradients"), saved(result, "optimizer state")) for shard, result in results.items()
    }
    assert savings["none"] == (pytest.approx(0, abs=3), 0)
    assert savings["optimizer"] == (pytest.approx(0, abs=3), pytest.approx(50, abs=3))
    assert savings["gradients"] == (pytest.approx(50, abs=3), pytest.approx(50, abs=3))
    assert [re.search(r"^mode +(\w+)$", result.stdout, re.M).group(1) for result in results.values()] == list(results)


def test_a_bad_environment_is_named(text):
    result = run(*trainer(text), RANK="2", WORLD_SIZE="2")
    assert result.returncode == 1
    assert "RANK is 2" in result.stderr


def test_a_killed_rank_ends_the_other(text):
    """Two ranks without a common parent must notice by themselves."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [*trainer(text, steps=1000000), "--timeout-s=60"],
            env=os.environ
            | {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    lines = []
    while not any(line.startswith("step") for line in lines):
        lines.append(ranks[0].stderr.readline())
        assert lines[-1], "".join(lines)
    ranks[1].kill()
    errors = ranks[0].stderr.read()
    assert ranks[0].wait(timeout=60) == 1
    assert re.search("fairshard: rank 0: .*rank 1 broke off: that rank has ended", errors), errors
    ranks[1].communicate()
