"""A wheel for several versions of torch and Python gives the parts that fit, or says which versions it has."""

import pytest

from fairshard._built import find_built


@pytest.fixture
def package(tmp_path):
    for torch in ("2.9", "2.11"):
        (tmp_path / f"torch-{torch}").mkdir()
        for python in ("310", "39"):
            (tmp_path / f"torch-{torch}" / f"_core.cpython-{python}-x86_64-linux-gnu.so").touch()
    return tmp_path


def test_a_build_for_one_torch_is_the_package_itself(tmp_path):
    assert find_built(tmp_path) == tmp_path


def test_the_folder_of_the_installed_torch_is_chosen(package):
    assert find_built(package, "2.11.0+cu130", (3, 10)) == package / "torch-2.11"


def test_another_torch_is_told_which_there_are(package):
    with pytest.raises(ImportError, match=r"parts for torch 2\.9, 2\.11, but torch 2\.16\.0 is installed. Install"):
        find_built(package, "2.16.0", (3, 10))


def test_another_python_is_told_which_there_are(package):
    with pytest.raises(ImportError, match=r"parts for Python 3\.9, 3\.10, not for 3\.14"):
        find_built(package, "2.11.0", (3, 14))
