"""``comm.init_process_group()`` understands what torchrun, mpirun and srun tell their ranks."""

import os
import sys

import pytest
import torch
import torch.distributed as dist

from fairshard import comm
from support.pages import ROOT
from support.programs import free_port
from support.ranks import run_ranks
from support.trainer import mpirun, run

RANKS = 2


def launchers(rank, port, folder):
    """The variables that each launcher sets on one machine."""
    yield {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": RANKS} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    mpi = {"RANK": rank, "SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_SIZE": RANKS}
    yield {f"OMPI_COMM_WORLD_{name}": value for name, value in mpi.items()} | {
        "PMIX_NAMESPACE": f"test-{os.path.basename(folder)}",
        "PMIX_SERVER_URI2": folder,
    }
    slurm = {"PROCID": rank, "NTASKS": RANKS, "LOCALID": rank, "NTASKS_PER_NODE": RANKS, "NNODES": 1}
    yield {f"SLURM_{name}": value for name, value in slurm.items()} | {"SLURM_JOB_ID": port, "SLURM_STEP_ID": 0}


def _groups(rank, world_size, port, folder):
    dist.destroy_process_group()
    os.environ["TMPDIR"] = folder
    for variables in launchers(rank, port, folder):
        variables = {name: str(value) for name, value in variables.items()}
        os.environ.update(variables)
        group = comm.init_process_group(timeout_s=60)
        assert (group.rank, group.size) == (rank, RANKS), variables
        assert group.timeout_s == pytest.approx(60, abs=0.1)
        assert dist.get_backend() == "fairshard"
        values = torch.tensor([rank + 1.0])
        comm.all_reduce(group, values).wait()
        dist.all_reduce(values)  # and torch's own
        assert values.item() == 6
        dist.barrier()
        dist.destroy_process_group()
        for name in variables:
            del os.environ[name]
    assert comm.init_process_group().size == 1  # without any, it is alone
    dist.destroy_process_group()
    if rank == 0:
        alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        os.environ.update(alone, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        with pytest.raises(RuntimeError, match=r"rank 0 of 2 waited \S+ s at .* for rank\(s\) 1, which did not come"):
            comm.init_process_group(timeout_s=0.1)
    store = dist.FileStore(f"{folder}/end", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def test_launchers_are_understood(tmp_path):
    run_ranks("gloo", RANKS, _groups, free_port(), str(tmp_path))


# Under torchrun Python has no buffer, and print() writes a line and its end apart: those of two ranks run together.
PROGRAM = """
import sys

import torch
from fairshard import comm

group = comm.init_process_group(timeout_s=100)
values = torch.tensor([group.rank + 1.0])
comm.all_reduce(group, values).wait()
sys.stdout.write(f"the sum of {group.size} is {values.item():.0f}\\n")
"""


@pytest.mark.costly
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_ranks_of_a_real_launcher_meet(launcher, tmp_path):
    (tmp_path / "meet.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    start = torchrun if launcher == "torchrun" else [*mpirun(), "-n", "2", sys.executable]
    path = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    result = run(*start, tmp_path / "meet.py", **path)
    assert result.stdout.count("the sum of 2 is 3\n") == 2, result
