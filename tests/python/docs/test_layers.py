"""The sources use each other as docs/how_it_works.md says, and in no other way."""

from pathlib import Path

import pytest

from support import layers
from support.pages import ROOT

SOURCES = layers.sources(ROOT)
INCLUDES = layers.drawn("Who includes whom")
IMPORTS = layers.drawn("Who imports whom")
FOLDERS = sorted({layers.folder_of(file) for file in SOURCES})


def test_the_page_knows_every_folder():
    assert set(FOLDERS) == set(INCLUDES)
    assert {layers.package_of(module) for module in layers.modules(ROOT)} | {"_core"} == set(IMPORTS)


@pytest.mark.parametrize("table", [INCLUDES, IMPORTS], ids=["includes", "imports"])
def test_the_page_draws_no_cycle(table):
    assert not layers.upward_edges(table)


def test_includes_are_those_of_the_page():
    found = layers.include_edges(SOURCES)
    wrong = {edge: files for edge, files in found.items() if edge not in layers.edges_of(INCLUDES)}
    assert not wrong, f"docs/how_it_works.md does not draw these: {wrong}"
    assert not layers.edges_of(INCLUDES) - set(found), "drawn, but nobody needs them"


def test_imports_are_those_of_the_page():
    found = layers.import_edges(layers.modules(ROOT))
    wrong = {edge: modules for edge, modules in found.items() if edge not in layers.edges_of(IMPORTS)}
    assert not wrong, f"docs/how_it_works.md does not draw these: {wrong}"
    assert not layers.edges_of(IMPORTS) - set(found), "drawn, but nobody needs them"


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_of_a_folder_do_not_go_in_circles(folder):
    circle = layers.cycle(SOURCES, folder)
    assert not circle


def test_the_core_knows_no_module_no_optimizer_and_no_python():
    assert layers.drawn_core()
    wrong = layers.forbidden_headers(SOURCES, layers.drawn_core())
    assert not wrong


def with_line(name, line):
    """The sources with a line more in a file."""
    assert Path(name) in SOURCES
    return {**SOURCES, Path(name): f"{line}\n{SOURCES[Path(name)]}"}


@pytest.mark.parametrize(
    ("file", "line", "edge"),
    [
        ("src/shard/clip.cpp", "#include <fairshard/optim/oss.h>", ("shard/", "optim/")),
        ("src/comm/work.cpp", "#include <fairshard/shard/layout.h>", ("comm/", "shard/")),
        ("src/checkpoint/checkpoint.cpp", '#include "../nn/second_run.h"', ("checkpoint/", "nn/second_run.h")),
        ("include/fairshard/checkpoint.h", "  #  include <fairshard/page/pager.h>", ("checkpoint/", "page/")),
        ("python/src/shard.cpp", "#include <fairshard/optim/oss.h>", ("python/src/", "optim/")),
        ("models/model.cpp", "#include <fairshard/optim/oss.h>", ("models/", "optim/")),
        ("models/gpt2.cpp", '#include "../cli/buckets.h"', ("models/", "cli/")),
        ("cli/main.cpp", '#include "../src/store/files.h"', ("cli/", "store/files.h")),
    ],
)
def test_an_edge_too_many_is_found(file, line, edge):
    assert edge not in layers.edges_of(INCLUDES)
    found = layers.include_edges(with_line(file, line))
    assert edge in found
    assert any(text.startswith(f"{file} includes ") for text in found[edge])


@pytest.mark.parametrize(
    "line", ["#include <torch/nn/module.h>", "#include <torch/optim/adam.h>", "#include <Python.h>"]
)
def test_a_module_in_the_core_is_found(line):
    (found,) = layers.forbidden_headers(with_line("src/shard/clip.cpp", line), layers.drawn_core())
    assert found.startswith("src/shard/clip.cpp includes ")


def test_a_circle_is_found():
    files = with_line("include/fairshard/shard/layout.h", "#include <fairshard/shard/flat_group.h>")
    assert {"layout", "flat_group"} <= set(layers.cycle(files, "shard/"))


@pytest.mark.parametrize(
    "line",
    [
        "from fairshard.experimental.nn import OffloadModel",
        "from fairshard import experimental",
        "import fairshard.experimental.nn",
    ],
)
@pytest.mark.parametrize("text", ["{}", "def lazily():\n    {}"], ids=["module", "function"])
def test_an_import_of_experimental_is_found(line, text):
    found = layers.import_edges({"fairshard.optim.oss": text.format(line)})
    assert list(found) == [("optim", "experimental")]


def test_a_circle_in_the_table_is_found():
    assert layers.upward_edges({"a/": [], "b/": ["a/", "c/"], "c/": ["b/x.h"]}) == {("b/", "c/")}
