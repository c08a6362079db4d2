"""docs/from_fairscale.md says what is here, and says it of every name that FairScale has."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

PAGE = (Path(__file__).parents[3] / "docs/from_fairscale.md").read_text()
FAIRSCALE = json.loads(Path(__file__).with_name("fairscale-0.4.13.json").read_text())
#: Only an enumeration: the page names it in a sentence.
IN_WORDS = {"SlowMoBaseAlgorithm"}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def sections():
    """Of every tool: its places, and its rows as name, word and remark."""
    found = {}
    for part in PAGE.split("\n## ")[1:]:
        title, body = part.split("\n", 1)
        rows = [cells(line) for line in body.splitlines() if line.startswith("| `")]
        places = re.findall(r"`(fairshard\.[\w.]+)`", body.split("|", 1)[0])
        if places:
            found[title] = places, [(name.strip("`"), word, remark) for name, word, remark in rows]
    return found


SECTIONS = sections()
ROWS = [(tool, *row) for tool, (_, rows) in SECTIONS.items() for row in rows]
REFUSED = [cells(line) for line in PAGE.split("## What is refused")[1].splitlines() if line.startswith("| `")]


def import_name(path):
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def takes(function, argument):
    parameters = inspect.signature(function).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    if argument.startswith("**"):
        return inspect.Parameter.VAR_KEYWORD in kinds
    if argument.startswith("*"):
        return inspect.Parameter.VAR_POSITIONAL in kinds
    return argument in {parameter.name for parameter in parameters} or inspect.Parameter.VAR_KEYWORD in kinds


@pytest.mark.parametrize("place", [place for places, _ in SECTIONS.values() for place in places])
def test_a_tool_is_at_its_places(place):
    assert inspect.isclass(import_name(place))


@pytest.mark.parametrize(("tool", "name", "word", "remark"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_a_row_is_true(tool, name, word, remark):
    places, _ = SECTIONS[tool]
    here = import_name(places[0])
    assert word in ("same", "other", "accepted", "gone")
    assert remark or word == "same"
    if word == "gone":
        module = importlib.import_module(places[-1].rsplit(".", 1)[0])
        assert not hasattr(module, name)
        return
    member, listed = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", name).groups()
    arguments = [argument.strip() for argument in listed.split(",")] if listed else []
    if not member.startswith("."):
        assert member == tool
        # Not what **default would take: the constructor knows it.
        names = inspect.signature(here).parameters
        assert all(argument.lstrip("*") in names for argument in arguments)
        return
    found = getattr(here, member[1:])
    if listed is None:
        assert isinstance(found, property)
    elif word != "other":
        assert all(takes(found, argument) for argument in arguments)
    else:
        assert callable(found)


def listed_of(tool):
    return {name for name, _, _ in SECTIONS[tool][1]}


@pytest.mark.parametrize("path", sorted(FAIRSCALE))
def test_every_name_of_fairscale_is_listed(path):
    name = path.rsplit(".", 1)[1]
    if name in IN_WORDS:
        assert f"`{name}`" in PAGE
        return
    if name not in SECTIONS:
        assert any((name, "gone") == row[1:3] for row in ROWS)
        return
    listed = listed_of(name)
    for method, arguments in FAIRSCALE[path].items():
        if method == "__init__":
            assert {f"{name}({argument})" for argument in arguments} <= listed
        else:
            assert {f".{method}({', '.join(arguments)})", f".{method}"} & listed


def test_arguments_come_in_the_same_order():
    for path, methods in FAIRSCALE.items():
        name = path.rsplit(".", 1)[1]
        if name not in SECTIONS:
            continue
        theirs = [argument for argument in methods["__init__"] if not argument.startswith("*")]
        ours = list(inspect.signature(import_name(SECTIONS[name][0][0])).parameters)
        assert ours[: len(theirs)] == theirs


@pytest.fixture
def world(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[row[0].strip("`") for row in REFUSED])
def test_what_is_refused_says_why(call, words, world):
    names = {tool: import_name(places[0]) for tool, (places, _) in SECTIONS.items()} | {"torch": torch}
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    names |= {"model": model, "sgd": torch.optim.SGD(model.parameters(), lr=0.1)}
    with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=re.escape(words)):
        eval(call.strip("`"), names)
