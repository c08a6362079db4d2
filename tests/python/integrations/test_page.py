"""The programs of docs/integrations.md run as they stand there, and so do scripts of FairScale's time."""

import re

import pytest

from support import pages
from support.pages import ROOT
from support.programs import run_forked, run_python, torchrun_environments

SECTIONS = pages.sections(pages.read("integrations"))
EXAMPLES = ROOT / "examples/integrations"


@pytest.mark.parametrize("name", [name for name, text in SECTIONS.items() if pages.code(text, "python")])
def test_the_program_learns(name, tmp_path):
    (program,) = pages.code(SECTIONS[name], "python")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", run_python(program, tmp_path))]
    assert losses[-1] < 0.2 * losses[0]


def test_an_old_script_of_hugging_face(tmp_path):
    (command,) = pages.code(SECTIONS["Hugging Face Trainer"], "sh")
    ranks, script, *arguments = command.replace("\\\n", "").removeprefix("torchrun --nproc-per-node ").split()
    output = run_forked(
        EXAMPLES / script, *arguments, folder=tmp_path, environments=torchrun_environments(int(ranks))
    ).stdout
    assert float(re.search(r"perplexity ([\d.]+)", output).group(1)) < 3  # of 14 characters
    assert (tmp_path / "out/model.safetensors").is_file()


def test_an_old_script_of_lightning(tmp_path):
    """It has one line more than it had for FairScale, and learns what Lightning's own DDP learns."""
    script = (EXAMPLES / "lightning_script.py").read_text()
    old = tmp_path / "with_ddp.py"
    without_the_line = script.replace("import fairshard.lightning  # noqa: F401  the line\n", "")
    old.write_text(without_the_line.replace("ddp_sharded", "ddp"))
    assert "fairshard." not in old.read_text()
    both = tmp_path / "both.py"  # in one process, as Lightning takes seconds to import
    both.write_text("import runpy, sys\nfor script in sys.argv[1:]:\n    runpy.run_path(script, run_name='__main__')\n")
    scripts = (str(old), str(EXAMPLES / "lightning_script.py"))
    output = run_forked(both, *scripts, folder=tmp_path, environments=torchrun_environments(2)).stdout
    theirs, ours = re.findall(r"loss (\S+) -> (\S+)", output)
    assert ours == theirs
    assert float(ours[1]) < 0.2 * float(ours[0])
