"""``help()`` of anything public is useful: what it does, what each argument means, which types."""

import importlib
import inspect
import re

import pytest

from support import layers
from support.pages import ROOT

#: Their frameworks take seconds to import, in every process that collects tests; ruff looks at docstrings and types.
INTEGRATIONS = ("fairshard.lightning", "fairshard.transformers")
MODULES = [
    importlib.import_module(name)
    for name in layers.modules(ROOT)
    if not any(part.startswith("_") for part in name.split(".")) and not name.startswith(INTEGRATIONS)
]
NAMES = {
    f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in getattr(module, "__all__", ())
}
CLASSES = {name: value for name, value in NAMES.items() if inspect.isclass(value)}
#: The tools: their docstrings have an example and say what each argument means.
TOOLS = {
    name: value
    for name, value in CLASSES.items()
    if name.rsplit(".", 1)[1] in ("OSS", "AdaScale", "AdaScaleWrapper", "Checkpoint", "Group", "OffloadModel")
    or name.rsplit(".", 1)[1].startswith(("Sharded", "SlowMoDistributed"))
}


def test_there_is_something_to_look_at():
    assert len({id(value) for value in TOOLS.values()}) == 9
    assert len(MODULES) >= 12


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_module_says_what_it_is(module):
    assert module.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_what_it_is(name):
    assert inspect.getdoc(NAMES[name])


@pytest.mark.parametrize("name", CLASSES)
def test_the_members_of_a_class_say_what_they_are(name):
    of_all_enums = ("name", "value") if hasattr(CLASSES[name], "__members__") else ()
    own = {key: value for key, value in vars(CLASSES[name]).items() if key[0] != "_" and key not in of_all_enums}
    without = [
        key for key, value in own.items() if (callable(value) or isinstance(value, property)) and not value.__doc__
    ]
    assert not without


@pytest.mark.parametrize("name", TOOLS)
def test_the_arguments_of_a_tool_are_explained_in_order(name):
    text = inspect.getdoc(TOOLS[name])
    explained = re.findall(r"^    (\*{0,2}\w+): \S", text.split("Args:\n")[1], flags=re.M)
    arguments = inspect.signature(TOOLS[name]).parameters.values()
    assert explained == [
        ("**" if argument.kind is argument.VAR_KEYWORD else "") + argument.name for argument in arguments
    ]


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_has_an_example_that_is_python(name):
    text = inspect.getdoc(TOOLS[name])
    if TOOLS[name].__name__ == "AdaScaleWrapper":
        text = inspect.getdoc(TOOLS["fairshard.optim.AdaScale"])
    example = text.split("Example::\n")[1].split("\nArgs:")[0]
    compile(inspect.cleandoc(example), name, "exec")
    assert any(word in example for word in ("step", "save", "wait"))


@pytest.mark.parametrize("name", CLASSES)
def test_types_are_given(name):
    functions = [value for key, value in vars(CLASSES[name]).items() if inspect.isfunction(value) and key[0] != "_"]
    for function in functions:
        hints = inspect.get_annotations(function)
        assert set(inspect.signature(function).parameters) - {"self"} <= set(hints), function
        assert "return" in hints, function
