"""The programs of docs/integrations.md run as they stand there."""

import re

import pytest

from support import pages
from support.programs import run_python

SECTIONS = pages.sections(pages.read("integrations"))


@pytest.mark.parametrize("name", [name for name, text in SECTIONS.items() if pages.code(text, "python")])
def test_the_program_learns(name, tmp_path):
    (program,) = pages.code(SECTIONS[name], "python")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", run_python(program, tmp_path))]
    assert losses[-1] < 0.2 * losses[0]
