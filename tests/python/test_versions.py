"""A torch that is too old, or not the one of the build, is refused with both versions named."""

import pytest

import fairshard
from fairshard._versions import check_torch


def test_this_torch_is_accepted():
    check_torch()
    assert fairshard.__version__


def test_an_old_torch_is_refused():
    with pytest.raises(ImportError, match=r"2\.11 or newer.*2\.10\.1"):
        check_torch(found="2.10.1+cu128")


def test_another_torch_than_at_build_time_is_refused():
    with pytest.raises(ImportError, match=r"built with torch 2\.11\.0.*2\.15\.0"):
        check_torch(found="2.15.0", built="2.11.0")
