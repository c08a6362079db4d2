"""What holds for all tests: tests that take ``run_ranks`` are run over each backend."""

import functools
import os

import pytest

from support import ranks

# Where it is set, Python writes a line and its end apart, and lines of ranks that share an output run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)


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
