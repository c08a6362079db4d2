"""The log of `fairshard train` says what each rank has waited for others."""

import pytest

from support.trainer import train, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("data"))


def test_the_log_has_what_each_rank_has_waited(text, tmp_path):
    log = train(text, tmp_path / "log.jsonl", ranks=3, batch=9, steps=20)
    lines = log.of_kind("waits")
    assert [line["step"] for line in lines] == [line["step"] for line in log.of_kind("memory") if line["rank"] == 0]
    assert all(len(line["waited_s"]) == 3 and min(line["waited_s"]) >= 0 for line in lines)
    in_steps = sum(log.steps[step]["split_s"]["link"] for step in range(1, lines[-1]["step"] + 1))
    assert sum(line["waited_s"][0] for line in lines) >= in_steps - 1e-6 > 0
