"""A time counts only if the loss is right, and the page shows what the results say."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _figures(loss):
    return {"ms": 1.0, "rounds_ms": [1.0], "memory": 0, "sent": 0, "loss": [loss], "parameters": 1}


def test_a_peer_with_another_loss_has_no_time(benchmarks):
    from harness import _check_losses

    figures = {"ddp": _figures(2.0), "ddp+zero": _figures(2.001), "gradients": _figures(2.0), "fsdp": _figures(2.1)}
    not_run = {}
    _check_losses(figures, not_run)
    assert list(figures) == ["ddp", "ddp+zero", "gradients"]
    assert list(not_run) == ["fsdp"] and "4.97%" in not_run["fsdp"]


def test_another_loss_of_ours_is_an_error(benchmarks):
    from harness import _check_losses

    figures = {"ddp": _figures(2.0), "ddp+zero": _figures(2.0), "gradients": _figures(2.1)}
    with pytest.raises(RuntimeError, match="gradients: its loss is 5.00% away"):
        _check_losses(figures, {})


def test_the_page_says_what_the_results_say():
    subprocess.run([sys.executable, BENCHMARKS / "report.py", "--check"], check=True)


def test_a_page_that_was_changed_by_hand_is_noticed(benchmarks):
    import report

    page = report.PAGE.read_text()
    begin = page.index("<!-- end -->")
    changed = page[:begin] + "| a row of one's own |\n" + page[begin:]
    made, _ = report.make(changed)
    assert made == page
