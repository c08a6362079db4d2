"""Paths that cannot be used are named before anything else happens; what is no plain file is not waited for."""

import os
import stat
import subprocess

import pytest

from support.trainer import PROGRAM, environment, read_log, run, train, trainer, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("option", ["save", "log", "trace"])
def test_a_path_that_cannot_be_written_is_named_at_the_start(text, tmp_path, option):
    (tmp_path / "file").write_text("x")
    path = tmp_path / "file/under"
    result = run(*trainer(text, ranks=2, **{option: path}))
    assert result.returncode == 2, result.stderr
    assert f"--{option}" in result.stderr and str(tmp_path / "file") in result.stderr
    assert "step" not in result.stderr  # nothing was trained


@pytest.mark.parametrize("option", ["log", "trace"])
def test_a_folder_is_no_file_to_write(text, tmp_path, option):
    result = run(*trainer(text, **{option: tmp_path}))
    assert result.returncode == 2, result.stderr
    assert f"--{option}: {tmp_path}" in result.stderr


def test_folders_of_outputs_are_made(text, tmp_path):
    log = train(text, tmp_path / "a/b/log.jsonl", trace=tmp_path / "c/d/trace.json", save=tmp_path / "e/f")
    assert len(log.steps) == 8
    assert (tmp_path / "c/d/trace.json").is_file()
    assert (tmp_path / "e/f/step-00000008").is_dir()


def test_the_log_of_an_earlier_run_is_kept_until_training_begins(text, tmp_path):
    """A command with a mistake in it must not cost the log."""
    log = tmp_path / "log.jsonl"
    lines = train(text, log).lines
    (tmp_path / "file").write_text("x")
    assert run(*trainer(text, log=log, trace=tmp_path / "file/under")).returncode == 2
    assert read_log(log).lines == lines


def waiting_inputs(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return [tmp_path / "fifo", "/dev/zero"]


def quick(*command):
    """Ends by itself, or is killed before it has filled the memory."""
    command = ["sh", "-c", 'ulimit -v 40000000; exec "$@"', "sh", *map(str, command)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_plain_file_is_not_waited_for(text, tmp_path, place):
    path = waiting_inputs(tmp_path)[place]
    commands = [
        trainer(path),
        trainer(text, config=path),
        [PROGRAM, "report", path, "-o", tmp_path / "page.html"],
        [PROGRAM, "plan", "--model", path],
        [PROGRAM, "inspect", path],
        [PROGRAM, "sample", path],
        [PROGRAM, "consolidate", path, tmp_path / "out.safetensors"],
    ]
    for command in commands:
        result = quick(*command)
        assert result.returncode in (1, 2), (command, result)
        assert str(path) in result.stderr, (command, result.stderr)


def test_a_manifest_or_a_shard_that_is_a_fifo(text, tmp_path):
    for name in ("manifest.json", "shard-00000-of-00001.safetensors"):
        runs = tmp_path / name.split(".")[0]
        train(text, tmp_path / "log.jsonl", save=runs)
        (runs / "step-00000008" / name).unlink()
        os.mkfifo(runs / "step-00000008" / name)
        result = quick(PROGRAM, "inspect", "--verify", runs / "step-00000008")
        assert result.returncode == 1
        assert f"{name}: it is no regular file" in result.stderr


@pytest.mark.parametrize(("umask", "folder_mode", "file_mode"), [(0o002, 0o775, 0o664), (0o077, 0o700, 0o600)])
def test_the_umask_is_respected(text, tmp_path, umask, folder_mode, file_mode):
    command = [*trainer(text, save=tmp_path / "runs", log=tmp_path / "logs/log.jsonl")]
    assert subprocess.run(command, env=environment(), capture_output=True, umask=umask).returncode == 0
    out = tmp_path / "out.safetensors"
    command = [PROGRAM, "consolidate", tmp_path / "runs", out]
    assert subprocess.run(command, capture_output=True, umask=umask).returncode == 0
    page = tmp_path / "page.html"
    command = [PROGRAM, "report", tmp_path / "logs/log.jsonl", "-o", page]
    assert subprocess.run(command, capture_output=True, umask=umask).returncode == 0

    def mode(path):
        return stat.S_IMODE(os.stat(path).st_mode)

    step = tmp_path / "runs/step-00000008"
    assert {mode(path) for path in (tmp_path / "runs", step, tmp_path / "logs")} == {folder_mode}
    files = [*step.iterdir(), tmp_path / "logs/log.jsonl", out, page]
    assert {path.name: mode(path) for path in files} == dict.fromkeys((path.name for path in files), file_mode)


def test_a_temporary_directory_that_is_not_there_is_named(text):
    result = run(*trainer(text, ranks=2), TMPDIR="/nonexistent/tmp")
    assert result.returncode == 1
    assert "TMPDIR" in result.stderr and "/nonexistent/tmp" in result.stderr
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}
    result = run(*trainer(text), TMPDIR="/nonexistent/tmp", SLURM_JOB_ID="1", **variables)
    assert result.returncode == 1
    assert "TMPDIR" in result.stderr and "/nonexistent/tmp" in result.stderr
