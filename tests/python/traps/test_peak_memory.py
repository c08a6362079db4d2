"""Memory over the whole run, as its user sees it: the first step needs no more than later ones, and nothing is kept."""

import ctypes
import os

import pytest
import torch
from torch import nn

from support.parallel import ddp, sharded
from support.ranks import device

WIDTH, BLOCKS, STEPS = 768, 12, 5
M_MMAP_THRESHOLD = -3  # of malloc.h
LEAST = "all"  # the mode of least memory


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS))).to(device())


def _status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def used():
    return torch.cuda.memory_allocated() if device().type == "cuda" else _status("VmRSS")


def peak():
    return torch.cuda.max_memory_allocated() if device().type == "cuda" else _status("VmHWM")


def reset_peak():
    if device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def can_reset_peak():
    try:
        torch.ones(2**24)
        reset_peak()
    except OSError:
        return False
    return _status("VmHWM") < _status("VmRSS") + 2**24


def wrapped(model, mode, optim):
    return ddp(model, optim, lr=1e-3) if mode == "ddp" else sharded(model, mode, optim, bucket_bytes=None, lr=1e-3)


def train(parallel, optimizer, x):
    optimizer.zero_grad()
    parallel(x).pow(2).mean().backward()
    optimizer.step()


def measured(rank, world_size, mode, optim=torch.optim.AdamW, is_exact=False):
    """Over the bare model, in models' sizes: the peak of each step, and what is used after the last.

    Where it is exact, the allocator gives everything back at once, which is not its default.
    """
    if is_exact:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    x = torch.ones(2, WIDTH, device=device())
    nn.Linear(WIDTH, 4 * WIDTH).to(device())(x).sum().backward()  # what kernels need for themselves
    # And the code that runs: its pages count once they are touched, and are as many for a model of any size.
    tiny = nn.Linear(8, 8).to(device())
    train(*wrapped(tiny, mode, optim), torch.ones(2, 8, device=device()))
    del tiny
    model = blocks()
    size = sum(parameter.nbytes for parameter in model.parameters())
    bare = used()
    peaks = []
    reset_peak()
    parallel, optimizer = wrapped(model, mode, optim)
    for _ in range(STEPS):
        train(parallel, optimizer, x)
        peaks.append((peak() - bare) / size)
        reset_peak()
    return peaks, (used() - bare) / size


pytestmark = [
    pytest.mark.costly,
    pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs") or not can_reset_peak(), reason="no peaks by step"),
]
SLACK = 0.3  # of a model's size: buckets under way, and what the allocator keeps


@pytest.mark.parametrize("mode", ["gradients", "step_in_backward", "release_parameters", LEAST])
def test_the_first_step_needs_no_more_than_later_ones(run_ranks, mode):
    """Without optimizer state, which would come with the first step and hide what else is needed there."""
    for peaks, _ in run_ranks(2, measured, mode, torch.optim.SGD, True):
        # The whole model was there before, and later steps may need less than that.
        assert peaks[0] <= max(0, *peaks[1:]) + SLACK / 2, [round(each, 2) for each in peaks]


def test_modes_of_less_memory_need_less_over_the_whole_run(run_ranks):
    """As their user sees it; what the C library keeps of freed gradients is in it, about a model's size."""
    found = {}
    for mode in ("ddp", "gradients", LEAST):
        found[mode] = max(max(peaks) for peaks, _ in run_ranks(2, measured, mode))
    told = {mode: round(each, 2) for mode, each in found.items()}
    # Over the bare model, for two ranks and AdamW. DDP: gradients, their buckets, two states.
    assert found["gradients"] < found["ddp"] - 1, told  # of gradients and states half, and no more than two buckets
    assert found[LEAST] < found["ddp"] - 2.5, (
        told
    )  # half of the states is one model, and half of the weights is given back


def test_what_is_released_goes_back_to_the_system(run_ranks):
    for _, after in run_ranks(2, measured, LEAST):
        assert after < 0.5 + SLACK, (
            f"{after:.2f} times the model's size; half of the states less half of the weights is 0.5"
        )
