"""The documentation holds together, its first programs run, and the messages that it explains exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import pages
from support.pages import CPP_TOOLS, ROOT, TOOLS
from support.programs import run_python

PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("name", TOOLS + CPP_TOOLS)
def test_a_tool_has_the_outline(name):
    headings = list(pages.sections(pages.read(name)))
    assert headings[: len(pages.OUTLINE)] == pages.OUTLINE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_index_has_every_page():
    index = (ROOT / "docs/README.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        # index.md is the site's first page, and shows this index.
        assert page.name in ("README.md", "index.md") or f"({page.name})" in index, page.name


def test_the_picture_is_what_its_program_draws():
    drawn = subprocess.run([sys.executable, ROOT / "docs/draw_step.py"], capture_output=True, text=True, check=True)
    assert drawn.stdout == (ROOT / "docs/step.svg").read_text()


def run_cpp(name, folder):
    program = ROOT / "build/bin/docs-programs"
    result = subprocess.run([program, name], cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run(name, language, folder):
    return run_cpp(name, folder) if language == "cpp" else run_python(pages.first_program(name, "python"), folder)


def headers_of(text):
    """The text of all headers of ours that some text includes, and of those that these include."""
    todo, found = [text], {}
    while todo:
        for name in re.findall(r"#include [<\"](fairshard/[\w/]+\.h)[>\"]", todo.pop()):
            if name not in found:
                folder = "models/include" if name.startswith("fairshard/models/") else "include"
                found[name] = (ROOT / folder / name).read_text()
                todo.append(found[name])
    return "\n".join(found.values())


@pytest.mark.parametrize("name", TOOLS + CPP_TOOLS)
def test_a_first_program_includes_what_it_names(name):
    """The compiler does not see that: the programs are compiled as one."""
    program = pages.first_program(name, "cpp")
    included = headers_of(program)
    for word in set(re.findall(r"fairshard::(?:\w+::)*(\w+)", program)):
        assert re.search(rf"\b{word}\b", included), f"{name}.md: no header that it includes has {word}"
    for word, header in (("printf", "cstdio"), ("cout", "iostream"), ("torch::", "torch/torch.h")):
        assert word not in program or f"#include <{header}>" in program, f"{name}.md: {header}"


@pytest.mark.parametrize("name", [name for name in TOOLS if name != "comm"])
@pytest.mark.parametrize("language", ["python", "cpp"])
def test_a_first_program_learns(name, language, tmp_path):
    first, last = re.search(r"loss (\S+) -> ([\d.]+)", run(name, language, tmp_path)).groups()
    assert float(last) < 0.5 * float(first)


@pytest.mark.parametrize("name", CPP_TOOLS)
def test_a_first_program_in_cpp_learns(name, tmp_path):
    test_a_first_program_learns(name, "cpp", tmp_path)


@pytest.mark.parametrize("language", ["python", "cpp"])
def test_the_first_program_of_comm_sums(language, tmp_path):
    assert "the sum is 3" in run("comm", language, tmp_path)


def test_the_first_program_of_checkpoints_goes_on(tmp_path):
    """Also where the other language has ended: but for the parts that only one of them has."""
    assert "from step 0: " in run("checkpoints", "cpp", tmp_path)
    assert "from step 100: " in run("checkpoints", "cpp", tmp_path)


def source_text():
    """All that our sources say: strings that stand beside each other are one."""
    files = [file for folder in ("src", "include", "python", "models", "cli") for file in (ROOT / folder).rglob("*")]
    text = "\n".join(file.read_text() for file in files if file.suffix in (".cpp", ".h", ".py"))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_messages_are_those_of_the_sources():
    text = source_text()
    for name in TOOLS + CPP_TOOLS:
        rows = re.findall(r"^\| `(.+?)` \|", pages.sections(pages.read(name))["Failure messages"], flags=re.M)
        assert len(rows) >= 5
        for message in rows:
            for words in re.split(r"<[\w ]+>", message):
                assert len(words.strip()) < 4 or words.strip() in text, f"{name}.md: {message}: {words}"


def test_the_first_program_of_the_readme_runs(tmp_path):
    program = pages.code((ROOT / "README.md").read_text(), "python")[0]
    assert "loss " in run_python(program, tmp_path)


def test_paths_in_the_text_exist():
    for page in PAGES:
        for path in re.findall(
            r"`((?:benchmarks|examples|tests|scripts|docs|include|src|python|models)/[\w./-]+)`", page.read_text()
        ):
            assert Path(ROOT / path).exists(), f"{page.name}: {path}"


@pytest.mark.parametrize("name", ["planner", "choosing"])
def test_tables_of_the_planner_are_what_it_prints(name):
    text = pages.read(name)
    (command, expected) = re.search(r"^\$ build/bin/fairshard (plan .*)\n((?:.*\n)*?)```", text, flags=re.M).groups()
    result = subprocess.run([ROOT / "build/bin/fairshard", *command.split()], capture_output=True, text=True)
    assert result.stdout == expected


def test_the_first_command_of_the_trainer_runs_in_a_fresh_folder(tmp_path):
    (tmp_path / "build").symlink_to(ROOT / "build")
    command = re.search(r"^(build/bin/fairshard train [^#\n]*)", pages.read("trainer"), flags=re.M).group(1)
    small = ["--size=nano", "--steps=2", "--batch=2", "--device=cpu"]
    result = subprocess.run([*command.split(), *small], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "runs/a/step-00000002").is_dir() and (tmp_path / "runs/a.jsonl").is_file()


def test_make_help_lists_every_target():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    described = re.findall(r"^([a-z][a-z -]*):.*## ", (ROOT / "Makefile").read_text(), flags=re.M)
    assert {"asan tsan", "test", "fuzz"} <= set(described)
    assert all(f"make {target} " in shown for target in described)


def test_the_table_of_what_goes_together_is_symmetric():
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", pages.read("choosing").split("## What goes together")[1], flags=re.M)
    kinds = [kind for kind, _ in rows]
    cells = {kind: [cell.strip() for cell in rest.split("|")] for kind, rest in rows}
    for row, kind in enumerate(kinds):
        for column, other in enumerate(kinds):
            assert cells[kind][column] == cells[other][row], (kind, other)
    assert all(cells[kind][-1].startswith("yes") for kind in kinds)  # all of them can be saved
