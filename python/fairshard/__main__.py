"""``python -m fairshard``: runs the program ``fairshard``, so the sub-commands and options are the same."""

import os
import platform
import sys
from pathlib import Path
from typing import NoReturn

import torch

from fairshard._built import find_built


def find_program(package: Path) -> Path:
    """The program that belongs to a package folder: installed with it, or built in the checkout around it.

    Raises FileNotFoundError that says where it was looked for.
    """
    installed = find_built(package) / "bin/fairshard"
    checkout = package.parents[1]
    is_checkout = (checkout / "CMakePresets.json").is_file()
    program = checkout / "build/bin/fairshard" if is_checkout else installed
    if not program.is_file():
        remedy = "build it with: make build" if is_checkout else "install fairshard again"
        raise FileNotFoundError(f"the program is not at {program}: {remedy}")
    return program


def environment() -> dict[str, str]:
    """The environment in which the program finds the torch that this Python has, wherever that is installed.

    ``fairshard doctor`` also compares the Pythons of all ranks.
    """
    libraries = [str(Path(torch.__file__).parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    own = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    return os.environ | own | {"FAIRSHARD_PYTHON_VERSION": platform.python_version()}


def main() -> NoReturn:
    """Becomes the program, with the arguments that this was given."""
    try:
        program = find_program(Path(__file__).resolve().parent)
    except FileNotFoundError as error:
        sys.exit(f"fairshard: {error}")
    os.execve(program, [str(program), *sys.argv[1:]], environment())


if __name__ == "__main__":
    main()
