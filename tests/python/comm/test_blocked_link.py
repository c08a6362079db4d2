"""A direction of a link that is blocked while ranks train is named, on networks of their own."""

import re
import sys

import pytest

from support import networks

#: From some moment on, what rank 0 sends to rank 1 goes to a machine that nobody has, but for what the store brings.
SCRIPT = """
import subprocess

import torch
import torch.distributed as dist

from fairshard import comm

comm.init_process_group(timeout_s=60)
group, store = comm.Group(), dist.distributed_c10d._get_default_store()
comm.explain_waits_after(group, 0.5)
values = torch.ones(8)
comm.all_reduce(group, values, label="open").wait()
if group.rank == 0:
    nobody = ["lladdr", "02:00:00:00:00:99", "nud", "permanent"]
    subprocess.run(["ip", "neigh", "replace", "{receiver}", "dev", "eth0", *nobody], check=True)
    store.set("blocked", "")
store.wait(["blocked"])
work = comm.all_reduce(group, values, label="late")
if group.rank == 1:
    table = comm.explain_waits(group)
    while " nothing of " not in table:
        table = comm.explain_waits(group)
    print(table)
    store.set("seen", "")
store.wait(["seen"])
if group.rank == 0:
    subprocess.run(["ip", "neigh", "del", "{receiver}", "dev", "eth0"], check=True)
work.wait()
print("the sum is", int(values[0]))
dist.destroy_process_group()
"""


@pytest.mark.networks
def test_a_blocked_direction_is_named():
    script = SCRIPT.format(receiver=networks.address_of(1))
    # Two interpreters import torch, which takes its time on a busy machine.
    first, second = networks.run_ranks(2, sys.executable, "-c", script, limit_s=240)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    # Gloo announces messages, and waits for an answer: the other direction may seem blocked, too.
    of_link = (
        r"(rank 1 hears nothing of rank 0|ranks 0 and 1 hear nothing of each other) in all_reduce #\d of Float\[8\] "
    )
    blocked = r"\(sum\) 'late', which all ranks have started: .* is blocked"
    assert re.search("verdict: " + of_link + blocked, second.stdout), second.stdout
    assert "waits for rank 0 to come" in second.stdout
    assert "the sum is 4" in first.stdout and "the sum is 4" in second.stdout  # it goes on
