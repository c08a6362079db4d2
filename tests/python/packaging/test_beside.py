"""The fairshard that is imported was built for the torch beside it, its program runs, and two ranks use it."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import fairshard
from fairshard._built import find_built


def test_it_was_built_for_this_torch():
    from fairshard import _core

    assert _core.torch_version == torch.__version__.split("+")[0]
    assert Path(_core.__file__).parent == find_built(Path(fairshard.__file__).parent)


def test_its_program_trains_with_two_ranks(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Two ranks train beside this torch. " * 200)
    command = [sys.executable, "-m", "fairshard", "train", f"--data={text}", "--size=nano", "--ranks=2", "--steps=5"]
    result = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
