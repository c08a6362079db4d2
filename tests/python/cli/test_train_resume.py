"""Runs that are stopped, killed or preempted go on as if nothing had happened."""

import os
import re
import shutil
import signal

import pytest

from support.running import Running
from support.trainer import read_log, run, torchrun, train, trainer, write_text

BITS, SUMS = 0.0, 2e-5  # see test_train_combinations.py
SAVING = {"steps": 12, "save_every": 2, "keep": 0}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """The run that was never stopped."""
    return train(text, tmp_path_factory.mktemp("whole") / "log.jsonl", ranks=2, steps=12)


def stop_after(step, runs):
    """Leaves the checkpoints that a run has which was killed after this step."""
    for folder in runs.iterdir():
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("before", "after", "promise"),
    [
        ({"ranks": 2}, {"ranks": 2}, BITS),
        ({"ranks": 2}, {"ranks": 1}, SUMS),
        ({"ranks": 1, "shard": "none"}, {"ranks": 4, "shard": "gradients"}, SUMS),
        ({"ranks": 4, "shard": "optimizer"}, {"ranks": 2, "shard": "gradients", "accumulate": 2}, SUMS),
        ({"ranks": 1, "offload": 3}, {"ranks": 2, "shard": "none"}, SUMS),
        ({"ranks": 2}, {"ranks": 1, "offload": 4}, SUMS),
    ],
)
def test_a_run_goes_on_with_other_ranks(text, whole, tmp_path, before, after, promise):
    log, runs = tmp_path / "log.jsonl", tmp_path / "runs"
    train(text, log, save=runs, **SAVING, **before)
    stop_after(6, runs)
    resumed = train(text, log, save=runs, resume=True, **SAVING, **after)
    assert resumed.of_kind("run")[1]["first_step"] == 7
    assert resumed.losses == (whole.losses if promise == BITS else pytest.approx(whole.losses, rel=promise))


@pytest.mark.parametrize("options", [{"amp": "fp16"}, {"adascale": True}, {"slowmo": True}, {"diloco": True}])
def test_all_state_is_in_the_checkpoint(text, tmp_path, options):
    """Bit for bit with the same ranks: scales, gains, outer momentum."""
    apart = {"slowmo_frequency": 5, "slowmo_momentum": 0.5} if {"slowmo", "diloco"} & set(options) else {}
    options = SAVING | {"ranks": 2, "steps": 20} | options | apart
    whole = train(text, tmp_path / "whole.jsonl", save=tmp_path / "whole", **options)
    log, runs = tmp_path / "log.jsonl", tmp_path / "runs"
    train(text, log, save=runs, **options)
    stop_after(6, runs)
    resumed = train(text, log, save=runs, resume=True, **options)
    assert resumed.of_kind("run")[1]["first_step"] == 7
    assert len(resumed.losses) > 8
    assert resumed.losses == whole.losses


def test_resume_without_a_checkpoint_begins(text, tmp_path):
    log = train(text, tmp_path / "log.jsonl", save=tmp_path / "runs", resume=True)
    assert log.lines[0]["first_step"] == 1


def test_a_new_run_does_not_mix_with_an_old_one(text, tmp_path):
    train(text, tmp_path / "log.jsonl", save=tmp_path / "runs", steps=2)
    result = run(*trainer(text, save=tmp_path / "runs"))
    assert result.returncode == 2
    assert "--save" in result.stderr and "--resume" in result.stderr


def test_another_model_is_refused_by_name(text, tmp_path):
    train(text, tmp_path / "log.jsonl", save=tmp_path / "runs", steps=2)
    result = run(*trainer(text, save=tmp_path / "runs", resume=True, width=64))
    assert result.returncode == 1
    assert "token_embedding.weight" in result.stderr


@pytest.mark.parametrize("asked", ["the program", "one rank"])
def test_sigterm_saves_and_ends_well(text, tmp_path, asked):
    options = {"ranks": 2, "save": tmp_path / "runs", "save_every": 0, "log": tmp_path / "log.jsonl"}
    running = Running(*trainer(text, steps=1_000_000, **options))
    running.wait_for("step")
    os.kill(running.process.pid if asked == "the program" else running.ranks[1], signal.SIGTERM)
    code, _, errors = running.end()
    assert code == 0, errors
    step = int(re.search(r"ended by SIGTERM after step (\d+), which was saved in", errors).group(1))
    log = read_log(tmp_path / "log.jsonl")
    assert (log.lines[-1]["kind"], log.lines[-1]["reason"]) == ("end", "terminated")
    assert max(log.steps) == step
    assert [line["step"] for line in log.events("terminated")] == [step]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"step-{step:08}"]
    resumed = run(*trainer(text, steps=step + 3, resume=True, **(options | {"ranks": 1})))
    assert resumed.returncode == 0, resumed.stderr
    assert max(read_log(tmp_path / "log.jsonl").steps) == step + 3


def test_sigterm_under_torchrun(text, tmp_path):
    running = Running(
        *torchrun("--standalone", "--nproc-per-node=2"),
        *trainer(text, steps=1_000_000, save=tmp_path / "runs", save_every=0),
    )
    running.wait_for("step")
    running.process.send_signal(signal.SIGTERM)
    _, _, errors = running.end()  # torchrun's own code says that it was interrupted
    assert "ended by SIGTERM after step" in errors
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_torchrun_brings_back_a_run_whose_rank_was_killed(text, tmp_path):
    """And then a run with fewer ranks goes on."""
    log, runs = tmp_path / "log.jsonl", tmp_path / "runs"
    options = {"save": runs, "save_every": 10, "resume": True, "width": 64}
    running = Running(
        *torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1"),
        *trainer(text, steps=300, log=log, **options),
    )
    running.wait_for(" 30/300")  # the save of step 20 has begun, so that of step 10 is complete
    os.kill(running.ranks[-1], signal.SIGKILL)
    code, _, errors = running.end()
    assert code == 0, errors
    restarted = read_log(log)
    assert len(restarted.of_kind("run")) == 2
    assert restarted.of_kind("run")[1]["first_step"] > 10
    assert sorted(restarted.steps) == list(range(1, 301))
    fewer = train(text, log, steps=310, ranks=1, **options)
    assert fewer.of_kind("run")[2]["ranks"] == 1
    assert sorted(fewer.steps) == list(range(1, 311))


def test_a_run_goes_back_to_a_step(text, whole, tmp_path):
    log, runs = tmp_path / "log.jsonl", tmp_path / "runs"
    train(text, log, save=runs, ranks=2, **SAVING)
    log.unlink()
    result = run(*trainer(text, log=log, save=runs, ranks=2, resume_from=6, **SAVING))
    assert result.returncode == 0, result.stderr
    assert "goes on after step 6" in result.stderr
    assert "goes back to step 6" in result.stderr
    assert "later checkpoints up to step 12" in result.stderr
    assert read_log(log).losses == whole.losses[6:]
    refused = run(*trainer(text, save=runs, resume_from=7, **SAVING))
    assert refused.returncode == 2
    assert "--resume-from: there is no complete checkpoint of step 7" in refused.stderr
    assert "there are: 2, 4, 6, 8, 10, 12" in refused.stderr
    alone = run(*trainer(text, resume_from=7, steps=12))
    assert "--resume-from: means nothing without --save" in alone.stderr
