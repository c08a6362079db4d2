"""``python -m fairshard`` is the program ``fairshard``."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairshard.__main__ import find_program

ROOT = Path(__file__).parents[2]
AS_MODULE = [sys.executable, "-m", "fairshard"]
AS_PROGRAM = [ROOT / "build/bin/fairshard"]


@pytest.mark.parametrize("arguments", [["--help"], ["surprise"], ["inspect", "/nonexistent"]], ids=" ".join)
def test_it_says_and_returns_what_the_program_does(arguments):
    module, program = (
        subprocess.run([*command, *arguments], capture_output=True, text=True) for command in (AS_MODULE, AS_PROGRAM)
    )
    assert (module.returncode, module.stdout, module.stderr) == (program.returncode, program.stdout, program.stderr)
    assert module.stdout or module.stderr


def test_the_program_of_a_checkout_is_found():
    assert find_program(ROOT / "python/fairshard") == ROOT / "build/bin/fairshard"


def test_a_program_that_was_not_built_is_told(tmp_path):
    (tmp_path / "CMakePresets.json").touch()
    with pytest.raises(FileNotFoundError, match=r"build/bin/fairshard: build it with: make build"):
        find_program(tmp_path / "python/fairshard")


def test_an_installed_package_without_the_program_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"site-packages/fairshard/bin/fairshard: install fairshard again"):
        find_program(tmp_path / "lib/site-packages/fairshard")
