"""Runs of `fairshard train` with a tiny model, and what they have logged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[3] / "build/bin/fairshard"
SMALL = {"steps": 8, "batch": 8, "context": 32, "layers": 2, "width": 32, "heads": 2} | {"device": "cpu", "threads": 1}


def write_text(folder):
    """A text that is quickly learnt."""
    path = folder / "text.txt"
    path.write_text("".join(f"{n} bottles of milk on the wall\n" for n in range(2000)))
    return path


def arguments(**options):
    """Options as they are on a command line: ``save_every=2`` is --save-every=2, True is a flag."""
    named = {
        name.replace("_", "-"): value for name, value in options.items() if value is not None and value is not False
    }
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in named.items()]


def trainer(text, /, **options):
    """The command that trains a tiny model on ``text``."""
    return [PROGRAM, "train", *arguments(**(SMALL | {"data": text} | options))]


def torchrun(*more):
    """Ends with "--": torchrun would take our --log for the beginning of its own --log-dir."""
    return [sys.executable, "-m", "torch.distributed.run", "--no-python", *more, "--"]


def mpirun():
    """Open MPI from the requirements, which finds its parts beside itself."""
    program = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun")
    assert program, "no mpirun: make setup installs it"
    return [program, "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def environment(**variables):
    """This process's, without what another launcher may have left in it."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "SLURM_"))}
    return own | variables


def run(*command, **variables):
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=120)


def train(data, log, **options):
    """Trains and returns the log."""
    result = run(*trainer(data, log=log, **options))
    assert result.returncode == 0, result.stderr
    return read_log(log)


class Log:
    """What a log says; a step that was done again counts once, as it was done last."""

    def __init__(self, lines):
        self.lines = lines
        self.steps = {line["step"]: line for line in self.of_kind("step")}

    def of_kind(self, kind):
        return [line for line in self.lines if line["kind"] == kind]

    def events(self, what):
        return [line for line in self.of_kind("event") if line["what"] == what]

    @property
    def losses(self):
        """Of all steps, and of the held-out text at the end."""
        return [self.steps[step]["loss"] for step in sorted(self.steps)] + [
            line["loss"] for line in self.of_kind("validation")[-1:]
        ]


def read_log(path):
    return Log([json.loads(line) for line in Path(path).read_text().splitlines()])
