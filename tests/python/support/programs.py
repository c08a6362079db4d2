"""Runs programs in Python: the documentation's, and the tutorials'."""

import functools
import gc
import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch.multiprocessing as mp

import support.ranks  # noqa: F401  what the server of processes imports
from support.pages import ROOT


class Output(NamedTuple):
    """What a program, or the first of its ranks, has written."""

    stdout: str
    stderr: str


def run_python(program, folder, is_fresh=False):
    """Runs a program as its first line says, by itself or as ranks in the environment that torchrun makes; its output.

    ``is_fresh``: each rank is a new interpreter, as it is for a user; that takes seconds to import torch.
    """
    script = folder / "first.py"
    script.write_text(program)
    environments = [{}]
    if ranks := re.match(r"# torchrun --nproc-per-node (\d) first.py\b", program):
        environments = torchrun_environments(int(ranks.group(1)))
    return (run_fresh if is_fresh else run_forked)(script, folder=folder, environments=environments).stdout


def torchrun_environments(ranks):
    """What torchrun would tell each rank of one machine."""
    meeting = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    meeting |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return [meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def run_fresh(script, *arguments, folder=None, environments=({},)):
    """In new interpreters."""
    path = {"PYTHONPATH": str(ROOT / "python")}
    started = [
        subprocess.Popen(
            [sys.executable, script, *arguments],
            cwd=folder,
            env=os.environ | path | own,
            text=True,
            stdout=-1,
            stderr=-1,
        )
        for own in environments
    ]
    results = [Output(*process.communicate(timeout=120)) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), results
    return results[0]


def run_forked(script, *arguments, folder=".", environments=({},)):
    """In processes forked from the server that tests' ranks come from, which has imported torch."""
    with tempfile.TemporaryDirectory() as outputs:
        work = (str(script), arguments, str(folder), environments, outputs)
        try:
            mp.start_processes(_run_script, work, nprocs=len(environments), start_method="forkserver")
        except Exception as error:
            for file in sorted(Path(outputs).iterdir()):
                error.add_note(f"{file.name}:\n{file.read_text()}")
            raise
        return Output(*((Path(outputs) / f"0.{name}").read_text() for name in Output._fields))


def _run_script(rank, script, arguments, folder, environments, outputs):
    gc.freeze()  # as for ranks
    os.environ |= environments[rank]
    os.chdir(folder)
    for descriptor, name in enumerate(Output._fields, start=1):
        os.dup2(os.open(f"{outputs}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    mp.spawn = functools.partial(mp.start_processes, start_method="fork")  # what a tutorial starts has torch, too
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
