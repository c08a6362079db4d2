"""Runs that are killed at any moment, and folders that cannot be written to."""

import os
import subprocess

import pytest
import torch

from fairshard.checkpoint import Checkpoint, list_steps
from support.kills import kill_often


def test_kills_at_random_moments_lose_no_complete_checkpoint(tmp_path):
    assert kill_often(8, seed=1, folder=str(tmp_path))["last step"] > 0


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    if os.geteuid() == 0:
        folder = "/proc/fairshard"  # root may write to all but this
    else:
        folder = str(tmp_path / "locked")
        os.mkdir(folder, mode=0o500)
    with pytest.raises(RuntimeError, match=rf"step 1 was not saved to {folder}: cannot make {folder}"):
        Checkpoint(folder, {"a": torch.ones(2)}).save(1)


def test_an_asynchronous_failure_comes_with_the_next_call(tmp_path):
    tensor = torch.ones(1000)
    checkpoint = Checkpoint(tmp_path / "a", {"a": tensor})
    checkpoint.save(1)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").write_text("in the way")
    checkpoint.save(2, blocking=False)
    with pytest.raises(RuntimeError, match="step 2 was not saved"):
        checkpoint.save(3)
    (tmp_path / "a").unlink()
    checkpoint.save(3)
    checkpoint.wait()
    assert list_steps(tmp_path / "a") == [3]
    assert list_steps(tmp_path / "b") == [1]


def test_the_end_of_a_script_waits_for_a_save_that_is_under_way(tmp_path):
    code = (
        "import sys, torch; from fairshard.checkpoint import Checkpoint\n"
        "Checkpoint(sys.argv[1], {'a': torch.ones(1 << 24)}).save(1, blocking=False)"
    )
    subprocess.run(["python", "-c", code, str(tmp_path)], check=True, timeout=60)
    assert list_steps(tmp_path) == [1]
