"""The example trainer learns the same under every launcher, and fails with a line and a code."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "build/bin/fairshard-gpt"
SCRIPTS = Path(sys.executable).parent
SMALL = {"steps": 6, "batch": 2, "context": 32, "layers": 1, "width": 32, "heads": 2, "device": "cpu"}


def trainer(text, **options):
    """The command that trains a tiny model on ``text``."""
    return [PROGRAM, *(f"--{name}={value}" for name, value in (SMALL | {"data": text} | options).items())]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{n} bottles of milk on the wall\n" for n in range(2000)))
    return path


def run(*command, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "SLURM_"))}
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, timeout=120)


def final_loss(result):
    assert result.returncode == 0, result.stderr
    return re.search(r"^final validation loss (\S+) nats/byte$", result.stdout, re.M).group(1)


def saved(result, name):
    """The last column of a row of the memory table, in percent."""
    assert result.returncode == 0, result.stderr
    return int(re.search(rf"^ *{name} .* (-?\d+) %$", result.stdout, re.M).group(1))


def mpirun():
    """Open MPI from the requirements, which finds its parts beside itself."""
    program = shutil.which("mpirun", path=SCRIPTS) or shutil.which("mpirun")
    assert program, "no mpirun: make setup installs it"
    return [program, "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def test_launchers_agree_on_the_loss(text):
    command = trainer(text)
    launched = final_loss(run(*command, "--ranks=2"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2", "--standalone"]
    assert final_loss(run(*torchrun, *command)) == launched
    assert final_loss(run(*mpirun(), "-n", "2", *command)) == launched


def test_the_table_says_what_was_sharded(text):
    output = run(*trainer(text, ranks=2)).stdout
    for word in ("parameters", "ranks", "weights", "gradients", "optimizer state", "saved", "tokens/s"):
        assert word in output


def test_sharding_saves_memory_and_not_accuracy(text):
    results = {shard: run(*trainer(text, ranks=2, shard=shard)) for shard in ("none", "optimizer", "gradients")}
    assert len({final_loss(result) for result in results.values()}) == 1
    savings = {
        shard: (saved(result, "gradients"), saved(result, "optimizer state")) for shard, result in results.items()
    }
    assert savings["none"] == (0, 0)
    assert savings["optimizer"] == (0, pytest.approx(50, abs=3))
    assert savings["gradients"] == (pytest.approx(50, abs=3), pytest.approx(50, abs=3))
    assert [re.search(r"^mode +(\w+)$", result.stdout, re.M).group(1) for result in results.values()] == list(results)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"data": "/nonexistent"}, 2, "/nonexistent"),
        ({"ranks": 0}, 2, "--ranks"),
        ({"width": 33}, 2, "33"),
        ({"steps": "many"}, 2, "many"),
        ({"surprise": 1}, 2, "--surprise"),
        ({"shard": "surprise"}, 2, "--shard: surprise"),
    ],
)
def test_bad_options(text, options, code, words):
    result = run(*trainer(text, **options))
    assert result.returncode == code
    assert words in result.stderr


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
    assert re.search("fairshard-gpt: rank 0: .*rank 1 broke off: that rank has ended", errors), errors
    ranks[1].communicate()
