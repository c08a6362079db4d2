"""Who includes and imports whom, in the sources and in docs/how_it_works.md."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from support import pages

#: Between folders: ("shard/", "comm/"). A private header is named: ("checkpoint/", "store/json.h").
Edge = tuple[str, str]

#: What only façades know, by the beginning of the header's name.
_FACADES_OF_TORCH = ("torch/nn", "torch/optim", "torch/torch.h", "torch/all.h")
_PYTHON = ("torch/python", "torch/csrc/Exceptions", "pybind11/", "Python.h")


def drawn(heading: str) -> dict[str, list[str]]:
    """A table of the page, as folder -> what it may use."""
    section = pages.sections(pages.read("how_it_works"))[heading]
    rows = re.findall(r"^\| `([^`]+)` \|(?:[^|]*\|)?([^|]*)\|$", section, flags=re.M)
    return {folder: re.findall(r"`([^`]+)`", uses) for folder, uses in rows}


def drawn_core() -> set[str]:
    """The folders of the core, by the same page."""
    section = pages.sections(pages.read("how_it_works"))["Who includes whom"]
    return set(re.findall(r"^\| `([^`]+)` \| core \|", section, flags=re.M))


def edges_of(table: dict[str, list[str]]) -> set[Edge]:
    return {(folder, used) for folder, uses in table.items() for used in uses}


def upward_edges(table: dict[str, list[str]]) -> set[Edge]:
    """Those to a folder that does not stand in a row above: without any, the table has no cycle."""
    rows = list(table)
    above = {row: rows[:i] for i, row in enumerate(rows)}
    return {(a, b) for a, b in edges_of(table) if b not in above[a] and f"{b.split('/')[0]}/" not in above[a]}


def sources(root: Path) -> dict[Path, str]:
    """Our C++ of the library, the bindings, the models and the program, without others' declarations."""
    files = (f for top in ("include", "src", "python/src", "models", "cli") for f in sorted((root / top).rglob("*")))
    return {
        f.relative_to(root): f.read_text()
        for f in files
        if f.suffix in (".h", ".cpp") and not any(part.endswith("_declarations") for part in f.parts)
    }


def folder_of(file: Path) -> str:
    """`shard/` for include/fairshard/shard/clip.h and src/shard/clip.cpp; checkpoint.h is of `checkpoint/`."""
    if file.parts[0] == "include":
        return file.parts[2].removesuffix(".h") + "/"
    if file.parts[0] == "src":
        return file.parts[1] + "/"
    return f"{file.parts[0]}/" if file.parts[0] in ("models", "cli") else "python/src/"


def _includes(text: str) -> Iterator[tuple[bool, str]]:
    for quote, name in re.findall(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', text, flags=re.M):
        yield quote == '"', name


def _included_file(file: Path, is_quoted: bool, name: str, files: Iterable[Path]) -> Path | None:
    """Which of our files an include means, if any."""
    beside = Path(*_without_dots((*file.parts[:-1], *Path(name).parts)))
    candidates = [Path("include", name), Path("models/include", name)] + (
        [beside, Path("cli", name)] if is_quoted else []
    )
    return next((f for f in candidates if f in files), None)


def _without_dots(parts: Iterable[str]) -> list[str]:
    result: list[str] = []
    for part in parts:
        if part == "..":
            result.pop()
        else:
            result.append(part)
    return result


def include_edges(files: dict[Path, str]) -> dict[Edge, list[str]]:
    """The edges between folders, each with the files that make it."""
    found: dict[Edge, list[str]] = {}
    for file, text in files.items():
        for is_quoted, name in _includes(text):
            target = _included_file(file, is_quoted, name, files)
            if target is not None and folder_of(target) != folder_of(file):
                is_private = target.parts[0] == "src" and _is_public(folder_of(target), files)
                used = f"{folder_of(target)}{target.name}" if is_private else folder_of(target)
                found.setdefault((folder_of(file), used), []).append(f"{file} includes {name}")
    return found


def _is_public(folder: str, files: Iterable[Path]) -> bool:
    """Whether a folder has public headers, so that its others are its own."""
    return any(f.parts[0] == "include" and folder_of(f) == folder for f in files)


def forbidden_headers(files: dict[Path, str], core: set[str]) -> list[str]:
    """Includes of Python's in the library, and of torch's modules and optimizers in the core."""
    found = []
    for file, text in files.items():
        if file.parts[0] not in ("include", "src"):
            continue
        forbidden = _PYTHON + (_FACADES_OF_TORCH if folder_of(file) in core else ())
        found += [f"{file} includes {name}" for _, name in _includes(text) if name.startswith(forbidden)]
    return found


def cycle(files: dict[Path, str], folder: str) -> list[str]:
    """A circle of files of a folder that include each other, or nothing."""
    used: dict[str, set[str]] = {}
    for file, text in files.items():
        if folder_of(file) == folder:
            targets = (_included_file(file, *include, files) for include in _includes(text))
            names = {f.stem for f in targets if f is not None and folder_of(f) == folder}
            used.setdefault(_unit(file.stem), set()).update({_unit(name) for name in names} - {_unit(file.stem)})
    return find_cycle(used)


def _unit(stem: str) -> str:
    """A header, its source and what they hide from the public (x_impl.h, or x_state.h with its X::State) are one."""
    return stem.removesuffix("_impl").removesuffix("_state")


def find_cycle(used: dict[str, set[str]]) -> list[str]:
    """The nodes of a circle, in order, or nothing."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        for other in sorted(used.get(node, ())):
            if found := visit(other, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(used) if (found := visit(node, []))), [])


def modules(root: Path) -> dict[str, str]:
    """The Python package's files by the module's name."""
    files = sorted((root / "python/fairshard").rglob("*.py"))
    names = [".".join(f.relative_to(root / "python").with_suffix("").parts).removesuffix(".__init__") for f in files]
    return {name: f.read_text() for name, f in zip(names, files, strict=True)}


def package_of(module: str) -> str:
    """`optim` for fairshard.optim.oss; `fairshard` for the package itself with its private modules."""
    parts = module.split(".")
    is_root = len(parts) == 1 or (parts[1].startswith("_") and parts[1] != "_core")
    return parts[0] if is_root else parts[1]


def import_edges(texts: dict[str, str]) -> dict[Edge, list[str]]:
    """The edges between subpackages, with the modules that make them; also imports within functions."""
    found: dict[Edge, list[str]] = {}
    for module, text in texts.items():
        for name in _imports(ast.parse(text)):
            if package_of(name) != package_of(module):
                found.setdefault((package_of(module), package_of(name)), []).append(f"{module} imports {name}")
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fairshard")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the package imports by whole names"
            if node.module and node.module.split(".")[0] == "fairshard":
                # `from fairshard import comm` imports fairshard.comm; `from fairshard.optim import OSS` a name of it.
                whole = (f"{node.module}.{alias.name}" for alias in node.names)
                yield from (name if node.module == "fairshard" else node.module for name in whole)
