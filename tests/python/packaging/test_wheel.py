"""``pip install .`` gives the package, its extension, the C++ headers and the CMake configuration."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_an_installed_wheel_works(tmp_path):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", tmp_path, ROOT], check=True)

    package = tmp_path / "fairshard"
    for part in ("include/fairshard/comm.h", "lib/libfairshard.so", "lib/cmake/fairshard/fairshardConfig.cmake"):
        assert (package / part).is_file(), part
    assert list(package.glob("_core*.so"))

    code = "import fairshard.comm as comm; print(comm.__file__, comm.ReduceOp.AVG)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(package)), result.stdout
