"""An offloaded model is saved from where it is, without a copy, and loaded to where it belongs."""

import functools
import gc

import pytest
import torch
from torch import nn

from fairshard.checkpoint import Checkpoint
from fairshard.experimental.nn.offload import OffloadModel

SLICES, WIDTH = 8, 1024
SLICE_BYTES = 4 * WIDTH * (WIDTH + 1)
SLACK_BYTES = 2 << 20  # Python's own, and the file's buffers
CPU = torch.device("cpu")


def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))


def peak_of(call):
    """How many bytes more than before and afterwards the process had while ``call`` ran.

    Afterwards it may have more for good, the code that it has run for the first time, and less, where memory of before
    went back to the system meanwhile.
    """
    gc.collect()
    before = kilobytes("VmRSS")
    with open("/proc/self/clear_refs", "w") as forget:
        forget.write("5")  # the peak counts from now on
    call()
    return 1024 * (kilobytes("VmHWM") - max(before, kilobytes("VmRSS")))


class Run:
    def __init__(self, folder, in_backward, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(SLICES)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        stepper = {"optimizer": self.optimizer} if in_backward else {}
        self.offload = OffloadModel(self.model, CPU, num_slices=SLICES, **stepper, **options)
        self.checkpoint = Checkpoint(folder, {"model": self.offload, "optimizer": self.optimizer})

    def train(self, steps):
        for step in steps:
            self.optimizer.zero_grad()
            x = torch.arange(4.0 * WIDTH).view(4, WIDTH).mul(0.3).add(step).sin()
            (self.offload(x) - 1).square().mean().backward()
            self.optimizer.step()

    def values(self):
        self.offload.wait_for_step()
        return [value.detach().clone() for value in self.model.parameters()]


@pytest.mark.parametrize("in_backward", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
def test_saving_needs_at_most_a_slice_more_than_the_run(tmp_path, in_backward, blocking):
    run = Run(tmp_path, in_backward)
    run.train(range(2))
    before = kilobytes("VmRSS")
    assert peak_of(functools.partial(run.checkpoint.save, 2, blocking)) < SLICE_BYTES + SLACK_BYTES
    run.checkpoint.wait()
    assert 1024 * (kilobytes("VmRSS") - before) < SLICE_BYTES + SLACK_BYTES  # no copy is kept


@pytest.mark.parametrize("spills", [False, True])
def test_a_run_goes_on_bit_for_bit(tmp_path, spills):
    options = {"host_budget_bytes": 5 * SLICE_BYTES, "spill_dir": str(tmp_path)} if spills else {}
    run = Run(tmp_path / "runs", in_backward=True, **options)
    run.train(range(3))
    run.checkpoint.save(3)
    in_files = run.offload.report()["file_bytes"]
    assert (in_files > 0) == spills
    run.train(range(3, 6))
    again = Run(tmp_path / "runs", in_backward=True, **options)
    assert again.checkpoint.load().step == 3
    again.train(range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(run.values(), again.values(), strict=True))
    assert again.offload.report()["file_bytes"] == in_files  # states are where their weights are
