"""Ranks that train with one system after another, and the tables that are made of what they say."""

import dataclasses
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("benchmarks")
GIB = 2**30


def _rank(ms=10.0, loss=5.0, **others):
    figures = {"ms": ms, "host_ms": ms / 2, "peak": GIB, "first_peak": 2 * GIB, "left": 0, "losses": [9.0, loss]}
    return figures | others


class _Ranks:
    """In place of processes: notes what they are asked for, and replies as the test says."""

    def __init__(self, replies):
        self.replies, self.asked, self.is_closed, self.where = replies, [], False, {"device": "cpu", "devices": 1}

    def train(self, system):
        self.asked.append(system)
        reply = self.replies.get(system, [_rank(), _rank(ms=12.0)])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self):
        self.is_closed = True


@pytest.fixture
def compare(monkeypatch):
    import gpu_training

    def run(systems, rounds, replies=(), **changes):
        ranks = _Ranks(dict(replies))
        monkeypatch.setattr(gpu_training, "Ranks", lambda *_: ranks)
        work = dataclasses.replace(gpu_training.ROWS["tiny-2"].work, rounds=rounds, **changes)
        return ranks, list(gpu_training.compare(gpu_training.Row(work, systems), "cpu"))

    return run


def test_rounds_are_interleaved_and_begin_with_different_systems(compare):
    systems = ["ddp", "ddp+zero", "fsdp", "replicated", "gradients"]
    ranks, rounds = compare(systems, 2)
    assert ranks.asked == [*systems, "replicated", "gradients", "ddp", "ddp+zero", "fsdp"]
    assert ranks.is_closed
    assert [len(figures["systems"]["fsdp"]["rounds_ms"]) for figures in rounds] == [1, 2]
    assert rounds[1]["systems"]["fsdp"]["ms"] == 12.0  # the slowest rank's


def test_the_row_goes_on_without_a_system_that_fails(compare):
    from harness import RankError

    ranks, (first, second) = compare(["ddp", "fsdp", "gradients"], 2, {"fsdp": RankError("out of memory")})
    assert ranks.asked == ["ddp", "fsdp", "gradients", "gradients", "ddp"]
    for figures in first, second:
        assert list(figures["systems"]) == ["ddp", "gradients"] and figures["not_run"] == {"fsdp": "out of memory"}


def test_a_row_whose_ranks_cannot_start_names_the_reason(compare, about):
    import gpu_tables
    from gpu_training import StartError

    ranks, [figures] = compare(["ddp", "fsdp"], 3, {"ddp": StartError("DistBackendError: Duplicate GPU detected")})
    assert ranks.asked == ["ddp"] and figures["not_run"] == {"all": "DistBackendError: Duplicate GPU detected"}
    assert "Not run: DistBackendError: Duplicate GPU detected." in gpu_tables.section(figures | {"about": about})


def test_a_time_with_another_loss_does_not_count(compare):
    replies = {"gradients": [_rank(loss=5.2)] * 2, "fsdp": [_rank(loss=5.02)] * 2}
    _, [figures] = compare(["ddp", "ddp+zero", "replicated", "fsdp", "gradients"], 1, replies)
    assert list(figures["systems"]) == ["ddp", "ddp+zero", "replicated", "fsdp"]
    assert "its loss is 4.00% away" in figures["not_run"]["gradients"]


def test_a_fake_group_has_no_loss_to_compare(compare):
    _, [figures] = compare(["alone", "gradients"], 1, {"gradients": [_rank(loss=float("nan"))]}, is_fake=True)
    assert list(figures["systems"]) == ["alone", "gradients"]


def test_nccls_own_words_are_the_reason():
    from gpu_rank import reason_of

    told = (
        "NCCL error in: x.cpp:1, invalid usage\nncclInvalidUsage: This usually reflects\nLast error:\nDuplicate GPU\n"
    )
    assert reason_of(RuntimeError(told)) == "RuntimeError: Duplicate GPU"
    assert reason_of(ValueError("first\nsecond")) == "ValueError: first"
    assert reason_of(ValueError()) == "ValueError: without a message"


def _system(*rounds, host=5.0, peak=8.0):
    middle = sorted(rounds)[len(rounds) // 2]
    memory = {"peak": peak * 1e9, "first_peak": (peak + 1) * 1e9, "left": 0}
    return {"ms": middle, "rounds_ms": [*rounds], "host_ms": host, "rounds_host_ms": [host] * len(rounds), **memory}


def _row(about, systems, **changes):
    work = {"model": "124m", "ranks": 2, "batch": 8, "length": 1024, "is_fake": False, **changes}
    where = {"device": "NVIDIA X", "devices": 1, "memory_gb": 80, "nccl": "2.30.7", "mps": True, "environment": {}}
    return {"about": about, "work": work, "where": where, "systems": systems, "not_run": {"fsdp": "no | reason."}}


def test_a_table_says_plainly_what_is_missed(about):
    from gpu_tables import section

    systems = {
        "ddp": _system(100, 120, 110),
        "ddp+zero": _system(100, 100, 100, peak=7.0),
        "replicated": _system(100.4, 120.4, 110.4, host=4.9),
        "gradients": _system(105, 126, 90, host=5.2, peak=6.5),
    }
    lines = section(_row(about, systems)).splitlines()
    assert "### GPT of 124m, over 2 ranks, batch 8 x 1024 a rank" in lines
    assert "1 x NVIDIA X (80 GB): 2 ranks share 1, so that only ratios mean something; NCCL 2.30.7, MPS." in lines
    assert "| **ours, gradients** | 105.0 | 90.0-126.0 | 1.05 | 5.2 | 6.50 | 7.50 |" in lines
    assert "| FSDP2, no resharding | not run: no / reason | | | | | |" in lines
    assert "- reached: replicated takes 1.00 x DDP (at most 1.00)" in lines
    assert "- **missed**: gradients takes 1.05 x DDP + ZeroRedundancyOptimizer (at most 1.00)" in lines
    assert "- **missed**: gradients takes 1.05 x DDP (at most 1.03)" in lines
    assert (
        "- reached: least memory of ours: gradients 6.50 GB; of the others: DDP + ZeroRedundancyOptimizer 7.00 GB"
        in lines
    )
    assert "- **missed**: host time, x DDP's: replicated 0.98, gradients 1.04 (at most 1.00)" in lines


def test_a_fake_group_is_compared_with_the_bare_model(about):
    from gpu_tables import section

    systems = {"alone": _system(20, 22), "replicated": _system(22, 24), "gradients": _system(23, 24.5)}
    lines = section(_row(about, systems, ranks=8, is_fake=True)).splitlines()
    assert "| **ours, gradients** | 24.5 | 23.0-24.5 | +2.8 | 5.0 | 8.00 | 9.00 |" in lines
    assert "- **missed**: ms above not wrapped: replicated +2.0, gradients +2.8 (at most 2.0)" in lines


def test_the_page_has_every_row(about, monkeypatch, tmp_path):
    import report

    monkeypatch.setattr(report, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    rows = {f"124m-{ranks}": _row(about, {"ddp": _system(1.0)}, ranks=ranks) for ranks in (2, 4)}
    (tmp_path / "results/gpu-training.json").write_text(json.dumps({"about": about, "rows": rows}))
    page = "<!-- made: gpu-training -->\n<!-- end -->\n"
    [made], _ = report.make(page)
    assert made.index("over 2 ranks") < made.index("over 4 ranks") and made.endswith("torch 2.\n<!-- end -->\n")


def test_processes_train_and_new_ones_take_their_place_after_a_failure(benchmarks, tmp_path):
    """Over Gloo on the CPU. What has only a program in C++ fails on all ranks."""
    systems = ["ddp", "cpp-gradients", "gradients"]
    flags = ["--device=cpu", "--rows=tiny-2", "--rounds=1", "--steps=2", f"--out={tmp_path}/trial.json"]
    command = [sys.executable, benchmarks / "gpu_training.py", *flags, "--systems", *systems]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "trial.json").read_text())["rows"]["tiny-2"]
    assert list(row["systems"]) == ["ddp", "gradients"]
    assert row["systems"]["gradients"]["loss"] == pytest.approx(row["systems"]["ddp"]["loss"], rel=1e-2)
    assert row["not_run"] == {"cpp-gradients": "TypeError: 'NoneType' object is not callable"}
    assert "| **ours, gradients** |" in done.stdout
