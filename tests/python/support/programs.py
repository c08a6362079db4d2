"""Runs the documentation's programs in Python."""

import os
import re
import socket
import subprocess
import sys

from support.pages import ROOT


def run_python(program, folder):
    """Runs a program as its first line says: by itself, or as ranks in the environment that torchrun makes."""
    (folder / "first.py").write_text(program)
    command = [sys.executable, "first.py"]
    ranks = re.match(r"# torchrun --nproc-per-node (\d) first.py\b", program)
    environments = [{}]
    if ranks:
        number = int(ranks.group(1))
        meeting = {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1"}
        meeting |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        environments = [meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]
    path = {"PYTHONPATH": str(ROOT / "python")}
    started = [
        subprocess.Popen(command, cwd=folder, env=os.environ | path | environment, text=True, stdout=-1, stderr=-1)
        for environment in environments
    ]
    results = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), results
    return results[0][0]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
