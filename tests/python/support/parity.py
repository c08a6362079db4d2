"""Models of other libraries under ours, in each mode, against torch's DDP: bit for bit on two ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.parallel import MODES, limited, sharded, whole
from support.ranks import device

STEPS = 4  # the first backward finds the order of buckets, the first forward the blocks


@dataclass
class Case:
    """A model, what its ranks are trained on, and how."""

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], dict]
    loss: Callable[[object], torch.Tensor] = lambda outputs: outputs.loss
    optim: type = torch.optim.AdamW
    options: dict = field(default_factory=lambda: {"lr": 1e-2})
    has_unused: bool = False
    bucket_bytes: int = 20_000


def made(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make().to(device()).train()


def train(case: Case, parallel: nn.Module, optimizer, rank: int) -> torch.Tensor:
    """Returns the losses. Dropout has the same numbers whoever trains."""
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        batch = {name: value.to(device()) for name, value in case.batch(generator).items()}
        torch.manual_seed(100 * rank + step)
        optimizer.zero_grad()
        loss = case.loss(parallel(**batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def trained_by_ddp(case: Case, rank: int) -> tuple[dict, torch.Tensor]:
    model = made(case)
    parallel = DistributedDataParallel(model, find_unused_parameters=case.has_unused)
    losses = train(case, parallel, case.optim([p for p in model.parameters() if p.requires_grad], **case.options), rank)
    for buffer in model.buffers():  # as ours has them by then, and DDP after its next forward
        dist.broadcast(buffer, 0)
    return whole(model), losses


def differences(rank: int, world_size: int, cases: dict[str, Callable[[], Case]], modes=tuple(MODES)) -> list[str]:
    """Trains each case in each mode; says where that is not what DDP gives."""
    found = []
    for name, make_case in cases.items():
        case = make_case()
        expected, expected_losses = trained_by_ddp(case, rank)
        begun = whole(made(case))
        assert any(not expected[key].equal(begun[key]) for key in expected), f"{name}: nothing was trained"
        for mode in modes:
            with limited(60):
                model = made(case)
                parallel, optimizer = sharded(model, mode, case.optim, case.bucket_bytes, **case.options)
                try:
                    losses = train(case, parallel, optimizer, rank)
                    values = whole(parallel)
                except Exception as error:
                    error.add_note(f"in {name}, {mode}")
                    raise
            wrong = [key for key, value in expected.items() if not values[key].equal(value)]
            if wrong or values.keys() != expected.keys() or not losses.equal(expected_losses):
                largest = max((float((values[key] - expected[key]).abs().max()) for key in wrong), default=0.0)
                found.append(
                    f"{name}, {mode}: {len(wrong)} of {len(expected)} tensors, up to {largest:.2g}, {wrong[:3]}; "
                    f"losses {losses.tolist()}, of DDP {expected_losses.tolist()}"
                )
    return found
