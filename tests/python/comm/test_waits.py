"""Ranks that wait for each other are explained to Python, on groups that torch.distributed made."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from fairshard import comm
from support.ranks import device
from support.ranks import run_ranks as run_ranks_over


def explain_until(group, *words):
    """Asks until the table says so: the others may be on their way to where they will wait."""
    deadline = time.monotonic() + 60
    while True:
        table = comm.explain_waits(group)
        if all(each in table for each in words):
            return
        assert time.monotonic() < deadline, table


def _late(rank, world_size):
    group = comm.Group()
    comm.explain_waits_after(group, 0.1)
    comm.note_step(group, 41)
    values = torch.ones(8, device=device())
    comm.all_reduce(group, values, label="early").wait()
    if rank == 1:
        words = "'late'", "its last was all_reduce #0 of Float[8]", "after step 41"
        explain_until(group, "rank 1 has not started all_reduce #1 of Float[8]", *words)
    work = comm.all_reduce(group, values, label="late")
    work.wait()
    assert values[0] == world_size**2


def test_a_late_rank_is_named(run_ranks):
    run_ranks(2, _late)


def _under_torchs_own(rank, world_size):
    group = comm.Group()
    comm.explain_waits_after(group, 0.1)
    values = torch.ones(8)
    if rank == 1:
        explain_until(group, "rank 1 has not started all_reduce #0 of Float[8]")
    dist.all_reduce(values)


def test_torchs_own_collectives_over_our_backend_are_seen():
    run_ranks_over("fairshard", 2, _under_torchs_own)


def _signalled(rank, world_size):
    group = comm.Group()
    comm.explain_waits_after(group, 0.1)
    comm.barrier(group)
    read, write = os.pipe()
    os.dup2(write, 2)
    with pytest.raises(ValueError, match="signal 9 cannot be handled"):
        comm.explain_waits_on_signal(signal.SIGKILL)
    if rank == 0:
        comm.explain_waits_on_signal(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        said = b""
        while b"verdict: " not in said:
            said += os.read(read, 4096)
        assert b"what the 2 ranks of a group wait for" in said
    comm.barrier(group)


def test_a_signal_has_the_table_written():
    run_ranks_over("fairshard", 2, _signalled)
