"""What holds for all tests: those that take ``run_ranks`` run over each backend, and some have the machine alone."""

import functools
import os
import tempfile

import pytest

# Ranks and workers have no core each, and threads that wait for one another burn what there is. torch reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where it is set, Python writes a line and its end apart, and lines of ranks that share an output run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)

from support import ranks
from support.turns import Turns

TURNS = pytest.StashKey[Turns]()
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config):
    if folder := getattr(config, "workerinput", {}).get("turns"):
        config.stash[TURNS] = Turns(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Of pytest-xdist: each worker is told where all of them take turns."""
    stash = node.config.stash
    if FOLDER not in stash:
        stash[FOLDER] = tempfile.TemporaryDirectory(prefix="fairshard-turns-")
    node.workerinput["turns"] = stash[FOLDER].name


def pytest_unconfigure(config):
    if folder := config.stash.get(FOLDER, None):
        folder.cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if (turns := item.config.stash.get(TURNS, None)) is None:
        return (yield)
    # Ranks that share a GPU do not start beside others: MPS answers "busy".
    is_on_gpu = ranks.gpu_ranks() > 0 and item.get_closest_marker("gpu") is not None
    with turns.taken(is_on_gpu or item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", ranks.BACKENDS)


def pytest_collection_modifyitems(items):
    has_gpus = ranks.gpu_ranks() > 1

    def is_wanted(item):
        marks = {mark.name for mark in item.iter_markers()}
        if "nccl" in marks:
            return has_gpus and "cpu_only" not in marks
        return "nccl_only" not in marks and not {"fairshard", "costly"} <= marks

    items[:] = filter(is_wanted, items)


@pytest.fixture
def run_ranks(backend):
    """``run_ranks(world_size, function, *arguments)``, over the backend of this test."""
    return functools.partial(ranks.run_ranks, backend)
