"""The blocks of the quickstart work as they stand there; that in C++ is a test of CMake's (consumer/quickstart)."""

import json
import os
import re
import shutil
import subprocess

import pytest

from support import pages
from support.pages import ROOT
from support.programs import run_python

TEXT = pages.read("quickstart")
ENVIRONMENT = os.environ | {"PATH": f"{ROOT / 'build/bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    shutil.copy(ROOT / "LICENSE", folder)
    return folder


def shell(block, folder):
    result = subprocess.run(
        ["bash", "-ec", block], cwd=folder, env=ENVIRONMENT, capture_output=True, errors="replace", timeout=240
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_it_has_five_short_blocks():
    numbers = re.findall(r"^\*\*(\d)\. ", TEXT, flags=re.M)
    assert numbers == ["1", "2", "3", "4", "5"]
    for language, blocks in (("sh", 3), ("python", 1), ("cmake", 1), ("cpp", 1)):
        found = pages.code(TEXT, language)
        assert len(found) == blocks
        assert all(block.count("\n") < 26 for block in found)


def test_train_resume_and_report(folder):
    train, resume, report = pages.code(TEXT, "sh")
    shell(train, folder)
    assert "Redistribution" in shell(resume, folder)
    shell(report, folder)
    steps = [line["step"] for line in map(json.loads, (folder / "more.jsonl").open()) if line["kind"] == "step"]
    assert len(steps) == 30  # it went on where the first had ended
    assert "<canvas" in (folder / "report.html").read_text()


def test_python(folder):
    program = pages.code(TEXT, "python")[0]
    loss = re.search(r"rank 0: loss ([\d.]+)", run_python(program, folder, is_fresh=True)).group(1)
    assert float(loss) < 40
