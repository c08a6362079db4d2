"""What a run leaves behind: the log, the timeline, checkpoints to sample from."""

import json
import re

import pytest

from support.trainer import PROGRAM, run, train, trainer, write_text

PARAMETERS = 34_000  # about as many as the tiny model has


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """A run that has learnt something."""
    folder = tmp_path_factory.mktemp("trained")
    train(text, folder / "log.jsonl", steps=150, lr=1e-2, save=folder / "runs")
    return folder


def test_the_log_says_what_was_run_and_how_it_went(text, tmp_path):
    log = train(
        text, tmp_path / "a run.jsonl", ranks=2, steps=12, save=tmp_path / "runs", save_every=5, validate_every=6
    )
    head = log.lines[0]
    assert head["kind"] == "run"
    assert (head["format"], head["name"], head["ranks"], head["first_step"], head["steps"]) == (1, "a run", 2, 1, 12)
    assert head["tokens_per_step"] == 8 * 32
    assert head["parameters"] == pytest.approx(PARAMETERS, rel=0.1)
    assert head["options"]["shard"] == "gradients"
    assert head["options"]["layers"] == 2
    assert sorted(log.steps) == list(range(1, 13))
    for line in log.steps.values():
        split = line["split_s"]
        assert set(split) == {"data", "compute", "link", "optimizer", "other"}
        assert all(seconds >= 0 for seconds in split.values())
        assert line["tokens_per_s"] == pytest.approx(256 / sum(split.values()))
    times = [line["time_s"] for line in log.steps.values()]
    assert times == sorted(times)
    assert [line["step"] for line in log.of_kind("validation")] == [6, 12]
    assert [line["step"] for line in log.events("saved")] == [5, 10, 12]
    assert (tmp_path / "runs/step-00000012/manifest.json").exists()
    assert log.lines[-1]["kind"] == "end"
    assert (log.lines[-1]["reason"], log.lines[-1]["step"]) == ("done", 12)


def test_bytes_on_the_wire_are_those_of_the_formula(text, tmp_path):
    """docs/sharding.md: 2, 3 and 2 times the parameters' bytes times (N-1)/N."""
    for shard, times in {"none": 2, "optimizer": 3, "gradients": 2}.items():
        log = train(text, tmp_path / f"{shard}.jsonl", ranks=2, shard=shard, width=128)
        ideal = times * 4 * log.lines[0]["parameters"] / 2
        sent = log.steps[8]["sent_bytes"]
        assert ideal < sent < 1.02 * ideal + 2000  # padding, headers, flags


def memory(log):
    return {line["rank"]: line for line in log.of_kind("memory") if line["step"] == 8}


def test_memory_is_measured_for_every_rank(text, tmp_path):
    def run(name, **options):
        return memory(train(text, tmp_path / f"{name}.jsonl", width=128, layers=6, **options))

    plain = run("plain", ranks=1, shard="none")[0]
    weights = plain["bytes"]["weights"]
    assert plain["bytes"]["gradients"] == pytest.approx(weights, rel=0.02)
    assert plain["bytes"]["optimizer"] == pytest.approx(2 * weights, rel=0.02)
    assert plain["peak_bytes"] == sum(plain["bytes"].values())
    sharded = run("sharded", ranks=2, shard="gradients")
    assert sorted(sharded) == [0, 1]
    for line in sharded.values():
        assert line["bytes"]["optimizer"] == pytest.approx(weights, rel=0.02)
        assert line["bytes"]["gradients"] == pytest.approx(weights / 2, rel=0.02)
        assert line["peak_bytes"] < plain["peak_bytes"]
    kept = run("kept", ranks=1, shard="none", checkpoint_activation=True)[0]
    assert kept["bytes"]["activations"] < 0.7 * plain["bytes"]["activations"]
    paged = run("paged", ranks=1, offload=8)[0]
    assert paged["bytes"]["weights"] < weights
    assert paged["bytes"]["host_weights"] >= 2 * weights
    assert paged["bytes"]["host_optimizer"] == pytest.approx(2 * weights, rel=0.02)
    assert paged["peak_bytes"] < 0.6 * plain["peak_bytes"]


@pytest.mark.parametrize("options", [{"shard": "gradients"}, {"ranks": 1, "offload": 3}])
def test_the_timeline_opens_in_perfetto(text, tmp_path, options):
    """The trace event format: complete events with microseconds, and names of processes and threads."""
    path = tmp_path / "trace.json"
    result = run(*trainer(text, **({"ranks": 2, "trace": path, "trace_steps": 3} | options)))
    assert result.returncode == 0, result.stderr
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert all({"name", "cat", "pid", "tid", "ts", "dur", "args"} <= set(event) for event in spans)
    assert all(event["dur"] >= 0 for event in spans)
    steps = [event for event in spans if event["cat"] == "steps"]
    ranks = options.get("ranks", 2)
    assert {event["pid"] for event in steps} == set(range(ranks))
    assert {event["name"] for event in steps} == {"data", "forward", "backward", "optimizer"}
    assert sum(event["name"] == "backward" for event in steps) == 3 * ranks
    named = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {f"rank {rank}" for rank in range(ranks)} | {"steps"} <= named
    if "offload" in options:
        assert {"compute", "copy in"} <= named


def test_a_sample_shows_what_was_learnt(trained):
    command = [PROGRAM, "sample", trained / "runs", "--prompt=17 bot", "--bytes=60", "--temperature=0.3"]
    first, again = run(*command), run(*command)
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout.startswith("17 bottles of milk on the wall\n")
    assert len(first.stdout) == len("17 bot") + 60 + 1
    assert run(*command, "--seed=5", "--temperature=2").stdout != first.stdout


def test_a_sample_of_nodes_that_train_apart(text, tmp_path):
    train(text, tmp_path / "log.jsonl", ranks=2, diloco=True, slowmo_frequency=4, save=tmp_path / "runs")
    result = run(PROGRAM, "sample", tmp_path / "runs", "--bytes=10", "--temperature=0")
    assert result.returncode == 0, result.stderr


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    result = run(PROGRAM, "sample", tmp_path)
    assert result.returncode == 1
    assert "there is no complete checkpoint" in result.stderr


def test_progress_is_shown(text):
    result = run(*trainer(text, ranks=2, steps=20))
    line = r"step +10/20  loss \d\.\d{4} nats/byte  \d+ tokens/s  \d+:\d\d left  \d+\.\d\d [KM]iB per rank"
    assert re.search(line, result.stderr), result.stderr
    for word in ("parameters", "ranks", "weights", "gradients", "optimizer state", "saved", "peak", "tokens/s"):
        assert word in result.stdout
