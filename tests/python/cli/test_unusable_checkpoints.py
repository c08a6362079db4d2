"""Folders of checkpoints that are damaged, foreign or somebody else's are refused by name, and stay as they are."""

import json
import os
import signal
import subprocess

import pytest

from support.running import Running
from support.trainer import PROGRAM, read_log, run, train, trainer, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture
def runs(text, tmp_path):
    """A folder with the checkpoints of steps 4 and 8."""
    train(text, tmp_path / "first.jsonl", save=tmp_path / "runs", save_every=4)
    return tmp_path / "runs"


def make_unknown(folder):
    """As if a later fairshard had written it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))


def truncate(folder):
    os.truncate(folder / "shard-00000-of-00001.safetensors", 1000)


def test_resume_refuses_when_none_can_be_used(text, runs):
    make_unknown(runs / "step-00000004")
    truncate(runs / "step-00000008")
    for resume in (True, False):
        result = run(*trainer(text, save=runs, resume=resume, ranks=2, keep=1))
        assert result.returncode != 0
        assert f"{runs}/step-00000004/manifest.json: version 99 is not known" in result.stderr
        assert f"{runs}/step-00000008/shard-00000-of-00001.safetensors: it has 1000 bytes" in result.stderr
        assert sorted(path.name for path in runs.iterdir()) == ["step-00000004", "step-00000008"]


def test_resume_warns_of_a_newer_one_that_it_passes_over(text, runs, tmp_path):
    truncate(runs / "step-00000008")
    log = tmp_path / "log.jsonl"
    result = run(*trainer(text, save=runs, resume=True, log=log))
    assert result.returncode == 0, result.stderr
    assert "step-00000008/shard-00000-of-00001.safetensors: it has 1000 bytes" in result.stderr
    assert read_log(log).lines[0]["first_step"] == 5


@pytest.mark.parametrize("name", ["", "step-00000008"])
def test_inspect_names_what_is_wrong(runs, name):
    make_unknown(runs / "step-00000004")
    truncate(runs / "step-00000008")
    result = run(PROGRAM, "inspect", runs / name)
    assert result.returncode == 1
    assert "step-00000008/shard-00000-of-00001.safetensors: it has 1000 bytes, but" in result.stderr
    if not name:
        assert "step-00000004/manifest.json: version 99" in result.stderr


def test_two_runs_do_not_save_to_one_folder(text, tmp_path):
    options = {"save": tmp_path / "runs", "save_every": 10, "keep": 1, "resume": True}
    first = Running(*trainer(text, steps=1_000_000, ranks=2, **options))
    first.wait_for("step")
    second = run(*trainer(text, steps=1_000_000, ranks=2, **options))
    assert second.returncode == 1
    assert f"{tmp_path}/runs: another run saves there" in second.stderr
    first.process.send_signal(signal.SIGTERM)
    code, _, errors = first.end()
    assert code == 0, errors
    step = max(read_steps(tmp_path / "runs"))
    assert run(*trainer(text, steps=step + 2, **options)).returncode == 0  # the first has let go


def read_steps(runs):
    return [int(path.name.removeprefix("step-")) for path in runs.iterdir()]


def test_a_link_to_a_checkpoint_is_removed_and_what_it_leads_to_is_not(text, runs, tmp_path):
    (runs / "step-00000004").rename(tmp_path / "archive")
    (runs / "step-00000004").symlink_to(tmp_path / "archive", target_is_directory=True)
    assert run(*trainer(text, save=runs, resume=True, steps=10, keep=1)).returncode == 0
    assert read_steps(runs) == [10]
    assert {path.name for path in (tmp_path / "archive").iterdir()} == {
        "manifest.json",
        "shard-00000-of-00001.safetensors",
    }


def test_consolidate_writes_all_or_nothing(runs, tmp_path):
    out = tmp_path / "weights.safetensors"
    command = f"ulimit -f 16; exec {PROGRAM} consolidate {runs} {out}"  # 16 kB, as on a disk that is full
    result = subprocess.run(["sh", "-c", f"trap '' XFSZ; {command}"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "File too large" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.jsonl", "runs"]
    assert run(PROGRAM, "consolidate", runs, out).returncode == 0
    before = out.read_bytes()
    result = run(PROGRAM, "consolidate", runs, out)
    assert result.returncode == 1 and str(out) in result.stderr  # it replaces nothing
    assert out.read_bytes() == before
