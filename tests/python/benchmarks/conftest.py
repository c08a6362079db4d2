"""What tests of the benchmarks share."""

from pathlib import Path

import pytest


@pytest.fixture
def benchmarks(monkeypatch):
    """Their folder, from which they are imported."""
    folder = Path(__file__).parents[3] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def about():
    """Where a made-up result was measured."""
    return {
        "commit": "c0ffee",
        "command": "python x.py",
        "versions": {"torch": "2"},
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gb": 4, "kernel": "6"},
    }
