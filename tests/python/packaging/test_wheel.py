"""``pip install .`` gives the package, its extension, the program, the C++ headers and the CMake configuration."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.alone  # others use the build folder


@pytest.fixture
def build(tmp_path_factory):
    """The folder that `make build` filled: to compile all of it once more would take ten minutes. A wheel is configured
    and linked in another way, so afterwards the folder is made again what it was: else `cmake --install` would find
    libraries with other search paths than those that it wants to change."""
    folder = ROOT / "build"
    linked = [*(folder / "lib").iterdir(), folder / "bin/fairshard", *(ROOT / "python/fairshard").glob("_core*.so")]
    kept = [folder / "CMakeCache.txt", folder / ".ninja_log", folder / ".ninja_deps", *linked]
    for number, file in enumerate(kept):
        shutil.copy2(file, tmp_path_factory.getbasetemp() / f"kept-{number}", follow_symlinks=False)
    yield folder
    for number, file in enumerate(kept):
        file.unlink()
        shutil.copy2(tmp_path_factory.getbasetemp() / f"kept-{number}", file, follow_symlinks=False)
    subprocess.run(["cmake", folder], check=True, capture_output=True)


def test_an_installed_wheel_works(tmp_path, build):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, f"--config-settings=build-dir={build}", "--target", tmp_path, ROOT], check=True)

    package = tmp_path / "fairshard"
    for part in ("include/fairshard/comm.h", "lib/libfairshard.so", "lib/cmake/fairshard/fairshardConfig.cmake"):
        assert (package / part).is_file(), part
    assert list(package.glob("_core*.so"))

    def run(*arguments):
        environment = {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    result = run("-c", "import fairshard.comm as comm; print(comm.__file__, comm.ReduceOp.AVG)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(package)), result.stdout

    result = run("-m", "fairshard", "inspect", tmp_path)
    assert "no complete checkpoint" in result.stderr, result.stderr
    assert result.returncode == 1


def test_the_build_can_be_installed_after_a_wheel_was_made(tmp_path):
    """Comes after the test above, which has linked it in another way meanwhile."""
    command = ["cmake", "--install", ROOT / "build", "--prefix", tmp_path / "prefix"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
