"""``fairshard plan``: tables, errors, and predictions beside what the trainer measures."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

PROGRAM = Path(__file__).parents[3] / "build/bin/fairshard"
KINDS = ("weights", "gradients", "optimizer")


def run(*arguments, timeout=120):
    return subprocess.run([PROGRAM, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


def plan(*arguments):
    result = run("--json", *arguments)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    return answer, {row["strategy"]: row for row in answer["strategies"]}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{n} bottles of milk on the wall\n" for n in range(2000)))
    return path


# Some in which activations are most of it, and some in which the model is.
WIDE = ("--layers", 4, "--width", 256, "--heads", 4, "--context", 32, "--batch", 4)
LONG = ("--layers", 4, "--width", 64, "--heads", 4, "--context", 128, "--batch", 16)


@pytest.mark.parametrize(
    ("ranks", "size", "strategies"),
    [
        (2, WIDE, ["optimizer", "gradients", "gradients+bf16", "gradients+checkpoint", "gradients+checkpoint+bf16"]),
        (2, LONG, ["none", "optimizer", "gradients+offload", "gradients+bf16", "gradients+checkpoint"]),
        (2, LONG, ["optimizer+checkpoint", "gradients+checkpoint+bf16"]),
        (1, WIDE, ["offload", "offload+checkpoint", "none+bf16"]),
        (1, LONG, ["none+checkpoint", "offload"]),
    ],
)
def test_memory_is_as_predicted(text, ranks, size, strategies):
    options = ("--measure", "--device", "cpu", "--threads", 1, "--steps", 4, "--slices", 3, "--data", text)
    _, rows = plan("--ranks", ranks, *size, *options, "--strategy", *strategies)
    assert sorted(rows) == sorted(strategies)
    for row in rows.values():
        found = row["measured"]
        assert {kind: row["bytes"][kind] for kind in KINDS} == {kind: found["bytes"][kind] for kind in KINDS}, row
        # The order in which gradients come is learnt by running, and buckets follow it.
        assert row["bytes"]["buckets"] == pytest.approx(found["bytes"]["buckets"], rel=0.1), row
        assert row["bytes"]["host"] == pytest.approx(found["bytes"]["host"], rel=0.01), row
        assert row["bytes"]["peak"] == pytest.approx(found["bytes"]["peak"], rel=0.05), row
        assert row["sent_bytes"] == pytest.approx(found["sent_bytes"], rel=0.05), row


def test_the_best_is_the_quickest_that_fits():
    _, rows = plan("--size", "large", "--ranks", 8, "--batch", 64, "--device-memory", "8GB", "--host-memory", "64GB")
    fitting = [row for row in rows.values() if row["fits"]]
    assert 0 < len(fitting) < len(rows)
    assert all(row["bytes"]["peak"] <= 8 * 2**30 for row in fitting)
    best = [row for row in rows.values() if row["is_best"]]
    assert len(best) == 1
    assert best[0]["time_s"]["step"] == min(row["time_s"]["step"] for row in fitting)


def test_more_memory_or_a_faster_link_changes_the_choice():
    tight, _ = plan("--size", "huge", "--ranks", 4, "--batch", 8, "--device-memory", "1GB")
    assert not any(row["is_best"] for row in tight["strategies"])
    slow, _ = plan("--size", "huge", "--ranks", 4, "--link", 0.1)
    fast, _ = plan("--size", "huge", "--ranks", 4, "--link", 1000)
    times = [[row["time_s"]["step"] for row in answer["strategies"]] for answer in (slow, fast)]
    assert all(a > b for a, b in zip(*times, strict=True))


def test_the_table_names_the_command(text):
    result = run("--size", "medium", "--ranks", 2, "--device-memory", "80GB")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[2].split() == [
        "strategy", "weights", "gradients", "optimizer", "buckets", "activations", "device", "host", "sent/step",
        "time/step", "fits",
    ]  # fmt: skip
    assert sum(line.startswith("* ") and "yes" in line for line in lines) == 1
    assert "fairshard train --layers 12 --width 768" in result.stdout


def test_models_from_files(tmp_path):
    tensors = {
        "a": torch.zeros(1000, 100),
        "b": torch.zeros(77, dtype=torch.bfloat16),
        "n": torch.zeros(5, dtype=torch.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    answer, rows = plan("--model", tmp_path / "model.safetensors", "--ranks", 2)
    assert answer["parameters"] == 100_077
    assert not answer["counts_activations"]
    assert rows["gradients"]["sent_bytes"] == 2 * 4 * 100_077 // 2
    answer, _ = plan("--parameters", 7_000_000_000, "--ranks", 64)
    assert answer["parameters"] == 7_000_000_000
    assert "Activations are not counted" in run("--parameters", 1000).stdout


def test_a_model_is_paged_only_where_nothing_else_fits():
    for arguments in (("--parameters", 10_000_000), ("--size", "micro"), ("--size", "large", "--ranks", 2)):
        _, rows = plan(*arguments, "--device-memory", "80GB")
        (best,) = (name for name, row in rows.items() if row["is_best"])
        assert "offload" not in best
    _, rows = plan("--parameters", 10_000_000_000, "--device-memory", "80GB")
    (best,) = (name for name, row in rows.items() if row["is_best"])
    assert "offload" in best


def test_where_nothing_fits_the_library_s_own_way_is_named():
    """70 billion parameters with AdamW in float32 are 16 bytes each: 131 GiB on each of eight ranks at least."""
    result = run("--parameters", 70_000_000_000, "--ranks", 8, "--device-memory", "160GB", "--host-memory", "100GB")
    assert result.returncode == 0
    assert re.search(
        r"release_parameters and overlap_gather would need about 1[345]\d\.\d GiB, which fits", result.stdout
    )
    result = run("--parameters", 70_000_000_000, "--ranks", 8, "--device-memory", "80GB", "--host-memory", "100GB")
    assert "which does not fit either" in result.stdout
    result = run("--size", "huge", "--ranks", 64, "--batch", 64, "--device-memory", "5GB", "--host-memory", "1GB")
    assert re.search(r"which fits.*\n  fairshard train .*--release-parameters --overlap-gather\n", result.stdout)


def test_the_version_is_there():
    result = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True)
    assert result.returncode == 0
    assert re.fullmatch(r"fairshard \d+\.\d+\.\d+ with torch \d+\.\d+.*\n", result.stdout)


def test_an_unknown_command_is_named():
    result = subprocess.run([PROGRAM, "trian", "--steps=3"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "there is no command 'trian'; there are: completion consolidate" in result.stderr
    assert " train" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--size", "giant"], 2, "giant"),
        (["--model", "/nonexistent"], 1, "/nonexistent: there is no such file"),
        (["--size", "small", "--parameters", 5], 2, "--size excludes --parameters"),
        (["--ranks", 3], 1, "--batch 16 windows cannot be shared evenly by --ranks 3"),
        (["--strategy", "surprise"], 1, "--strategy surprise is none of those for 1 rank(s): none"),
        (["--parameters", 5, "--measure"], 1, "--measure runs the trainer: give --size"),
        (["--width", 100, "--heads", 3], 1, "--width 100 is not a multiple of --heads 3"),
        (["--device-memory", "much"], 2, "much"),
        (["--steps", 3], 2, "--steps requires --measure"),
        (["--parameters", -5], 2, "-5 is not a whole number from 1"),
        (["--parameters", "1e30"], 2, "1e30 is not a whole number"),
        (["--parameters", 10**18], 2, "--parameters"),
        (["--link", "nan"], 2, "--link: nan is not a number above 0"),
        (["--compute", "inf"], 2, "--compute: inf is not a number above 0"),
        (["--compute", -1], 2, "--compute: -1 is not a number above 0"),
        (["--batch", -8], 2, "--batch: -8 is not a whole number"),
        (["--batch", "99999999999999999999"], 2, "--batch"),
        (["--layers", 10**9], 2, "--layers"),
        (["--layers", 10**6, "--width", 10**6, "--heads", 1], 1, "no more than 1000000000000000 are planned for"),
        (["--ranks", -1], 2, "--ranks"),
        (["--slices", 0], 2, "--slices"),
        (["--device-memory", "-5GB"], 2, "--device-memory"),
        (["--device-memory", "nanGB"], 2, "--device-memory"),
    ],
)
def test_bad_options_are_named(arguments, code, words):
    result = run(*arguments)
    assert result.returncode == code, result.stdout
    assert words in result.stderr


def test_a_training_that_fails_says_why():
    result = run("--measure", "--device", "cuda", "--size", "nano", "--steps", 2, "--data", "/dev/null")
    assert result.returncode == 1
    assert "the training that was to be measured failed: " in result.stderr
