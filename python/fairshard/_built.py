"""Where the compiled parts are that fit this torch: the extension, the library and the program."""

import sys
from collections.abc import Iterable
from pathlib import Path

import torch


def find_built(package: Path, found: str = torch.__version__, python: tuple[int, int] = sys.version_info[:2]) -> Path:
    """The folder of a package that has the compiled parts.

    A wheel for several versions of torch has a folder for each of them; otherwise it is the package itself. Raises
    ImportError that says which versions there are.
    """
    folders = {folder.name.removeprefix("torch-"): folder for folder in package.glob("torch-*")}
    if not folders:
        return package
    folder = folders.get(".".join(found.split("+")[0].split(".")[:2]))
    if folder is None:
        raise ImportError(
            f"this fairshard has parts for torch {_listed(folders)}, but torch {found} is installed. {_REMEDY}"
        )
    tags = {path.name.split(".")[1].split("-")[1] for path in folder.glob("_core.*.so")}
    if f"{python[0]}{python[1]}" not in tags:
        versions = [f"{tag[0]}.{tag[1:]}" for tag in tags]
        raise ImportError(
            f"this fairshard has parts for Python {_listed(versions)}, not for {python[0]}.{python[1]}. {_REMEDY}"
        )
    return folder


_REMEDY = "Install one of these, or build fairshard for this environment: pip install . in its sources"


def _listed(versions: Iterable[str]) -> str:
    return ", ".join(sorted(versions, key=lambda version: [int(part) for part in version.split(".")]))
