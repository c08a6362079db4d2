"""Type checkers know what is public, down to the C++ core, and the core's stubs are those of the core."""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "typed_program.py"
STUBS = ROOT / "python/fairshard/_core"
#: What is seen of a package that is installed: its types, and not what a checker thinks of its sources. Of torch, the
#: parts that such programs do not name are left out: reading them takes longest.
MYPY = """[mypy]
strict = True
[mypy-fairshard.*,torch.*]
ignore_errors = True
[mypy-torch._dynamo.*,torch._inductor.*,torch._functorch.*,torch.fx.*,torch.export.*,torch._export.*,torch.onnx.*]
follow_imports = skip
[mypy-torch._subclasses.*,torch._prims.*,torch._refs.*,torch._higher_order_ops.*,torch.distributed.tensor.*]
follow_imports = skip
[mypy-numpy.*,sympy.*]
follow_imports = skip
"""


def mypy(folder, *files):
    (folder / "mypy.ini").write_text(MYPY)
    cache = ROOT / "build/mypy_cache"  # kept: torch is read once
    command = [sys.executable, "-m", "mypy", "--config-file", folder / "mypy.ini", "--cache-dir", cache, *files]
    return subprocess.run(command, cwd=folder, env={"MYPYPATH": str(ROOT / "python")}, capture_output=True, text=True)


def pyright(folder, *files):
    config = {"include": [str(file) for file in files], "extraPaths": [str(ROOT / "python")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config | {"typeCheckingMode": "strict"}))
    command = [sys.executable, "-m", "basedpyright", "-p", folder, "--pythonpath", sys.executable]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright])


@CHECKERS
def test_a_users_program_has_no_errors_and_its_types_are_known(checker, tmp_path):
    result = checker(tmp_path, PROGRAM)
    assert result.returncode == 0, result.stdout + result.stderr


@CHECKERS
def test_wrong_programs_are_noticed(checker, tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(
        "from fairshard import comm\n"
        "group = comm.Group()\n"
        "name: str = group.rank\n"  # from a stub
        "comm.all_reduce(group, 3)\n"
        "group.surprise()\n"
    )
    result = checker(tmp_path, program)
    assert result.returncode == 1
    for line in (3, 4, 5):
        assert f"wrong.py:{line}:" in result.stdout, result.stdout


def public_names():
    """Of all modules, and of their classes."""
    for module in ("optim", "nn.data_parallel", "checkpoint", "checkpoint.dcp", "experimental.nn", "comm"):
        name = f"fairshard.{module}"
        for public in importlib.import_module(name).__all__:
            yield name, public
            found = getattr(sys.modules[name], public)
            members = vars(found) if inspect.isclass(found) else ()
            yield from ((name, f"{public}.{member}") for member in members if not member.startswith("_"))


def test_no_type_of_what_is_public_is_unknown(tmp_path):
    program = tmp_path / "all.py"
    program.write_text("".join(f"import {module}\nprint({module}.{name})\n" for module, name in public_names()))
    result = pyright(tmp_path, program)
    assert "unknown" not in result.stdout, result.stdout


def test_the_stubs_are_those_of_the_core(tmp_path):
    """After a change of the bindings: scripts/stubs."""
    subprocess.run([ROOT / "scripts/stubs", tmp_path], check=True)
    made = {file.name: file.read_text() for file in tmp_path.glob("*.pyi")}
    assert made == {file.name: file.read_text() for file in STUBS.glob("*.pyi")}, "stale: run scripts/stubs"
