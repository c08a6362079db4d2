"""A time counts only if the loss is right, and the page shows what the results say."""

import json
import subprocess
import sys

import pytest


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
    with pytest.raises(RuntimeError, match=r"gradients: its loss is 5\.00% away"):
        _check_losses(figures, {})


def test_a_loss_that_is_no_number_is_wrong(benchmarks):
    from harness import wrong_losses

    losses = {"ddp": [2.0, 2.001], "fsdp": [2.0, float("nan")], "gradients": [2.01, 2.0]}
    assert list(wrong_losses(losses)) == ["fsdp", "gradients"]
    assert list(wrong_losses(losses, tolerance=1e-2)) == ["fsdp"]


def test_who_comes_close_to_the_fastest_runs_on(benchmarks):
    from harness import close_to_fastest

    def runs(*rounds):
        return [[{"times": [ms / 1e3]}, {"times": [1e-6]}] for ms in rounds]

    found = close_to_fastest({"a": runs(100, 900, 100), "b": runs(111, 111, 50), "c": runs(113, 100, 113)})
    assert found == ["a", "b"]


def test_the_pages_say_what_the_results_say(benchmarks):
    subprocess.run([sys.executable, benchmarks / "report.py", "--check"], check=True)


@pytest.fixture
def one_result(benchmarks, about, monkeypatch, tmp_path):
    import report

    monkeypatch.setattr(report, "HERE", tmp_path)
    work = {"model": "tiny", "ranks": 2, "batch": 2, "steps": 3, "warmup": 1, "rounds": 1}
    systems = {"ddp": {**_figures(2.0), "ms": 12.0}, "gradients": {**_figures(2.0), "ms": 10.0}}
    found = {"about": about, "work": work, "systems": systems, "not_run": {"fsdp": "no reason"}, "alone": 100}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/sharded-tiny.json").write_text(json.dumps(found))
    return report


def test_blocks_are_made_from_results_and_what_is_around_them_stays(one_result):
    [page], pictures = one_result.make("before\n<!-- made: sharded-tiny -->\nold\n<!-- end -->\nafter\n")
    assert page.startswith("before\n<!-- made: sharded-tiny -->\n") and page.endswith("<!-- end -->\nafter\n")
    assert "| DDP | 12 | 1-1 | 1.20 |" in page and "| **ours, gradients** | 10 | 1-1 | 1.00 |" in page
    assert "not run: no reason" in page and "old" not in page
    assert list(pictures) == ["performance-sharded-tiny.svg"]
    assert one_result.make(page) == ([page], pictures)


def test_results_without_a_block_are_an_error(one_result):
    with pytest.raises(SystemExit, match="no block for the results sharded-tiny"):
        one_result.make("a page without blocks")


def test_a_block_without_results_says_so(one_result):
    shown = "<!-- made: sharded-tiny -->\n<!-- end -->\n"
    [page], _ = one_result.make(shown + "<!-- made: sharded-other -->\n<!-- end -->\n")
    assert page.endswith("<!-- made: sharded-other -->\nNot measured yet.\n<!-- end -->\n")
