"""Logs of runs as TensorBoard reads them."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fairshard.tensorboard import main, write_tensorboard
from support.trainer import train, write_text


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Of a run that was resumed, and did two steps again."""
    folder = tmp_path_factory.mktemp("run")
    text, runs = write_text(folder), folder / "runs"
    train(text, folder / "a.jsonl", save=runs, save_every=4, steps=6, keep=0)
    return train(text, folder / "a.jsonl", save=runs, resume_from=4, steps=10), folder / "a.jsonl"


def events_of(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_curves_are_those_of_the_log(log, tmp_path):
    lines, path = log
    main([str(path), str(tmp_path)])
    events = events_of(tmp_path / "a")
    losses = {event.step: event.value for event in events.Scalars("loss/training")}
    assert losses == {step: pytest.approx(line["loss"], rel=1e-6) for step, line in lines.steps.items()}
    assert len(events.Scalars("loss/training")) == 10
    validation = [line["loss"] for line in lines.of_kind("validation")]
    assert events.Scalars("loss/validation")[-1].value == pytest.approx(validation[-1], rel=1e-6)
    assert {"lr", "tokens_per_s", "seconds/compute", "memory/rank 0/weights", "waited/rank 0"} <= set(
        events.Tags()["scalars"]
    )
    assert "steps: 10" in events.Tensors("options/text_summary")[-1].tensor_proto.string_val[0].decode()
    times = [event.wall_time for event in sorted(events.Scalars("lr"), key=lambda event: event.step)]
    assert times == sorted(times)
    assert times[-1] <= path.stat().st_mtime


def test_what_is_no_log_is_named(tmp_path, log):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"kind": "step"}\n')
    with pytest.raises(ValueError, match='no line of kind "run"'):
        write_tensorboard(bad, tmp_path / "out")
    bad.write_text(log[1].read_text().replace("\n", "\nnonsense\n", 1))
    with pytest.raises(SystemExit, match=r"bad\.jsonl:2: not JSON: nonsense"):
        main([str(bad), str(tmp_path)])
    with pytest.raises(SystemExit, match=r"No such file"):
        main([str(tmp_path / "none"), str(tmp_path)])
    bad.write_text(log[1].read_text() + '{"kind": "st')  # the run goes on
    write_tensorboard(bad, tmp_path / "out")
    assert events_of(tmp_path / "out").Scalars("lr")
