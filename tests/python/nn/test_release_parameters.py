"""release_parameters: while blocks do not need their parameters, ranks keep only what they own. Against DDP."""

import gc
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from fairshard.optim.grad_scaler import ShardedGradScaler
from support.models import inputs, loss_of, values
from support.ranks import device

STEPS = 5
SETTINGS = (
    {},
    {"step_in_backward": True},
    {"overlap_gather": True},
    {"step_in_backward": True, "overlap_gather": True},
    {"partition": "tensor"},
    {"bucket_bytes": 0},
)


class Blocks(nn.Module):
    """One block runs twice, and one parameter is the root's own."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(10, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16, bias=False)) for _ in range(4)
        )
        self.scale = nn.Parameter(torch.ones(16))
        self.last = nn.Linear(16, 4)
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        x = self.first(x)
        for block in [*self.blocks, self.blocks[0]]:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)) * self.scale
        return {"outputs": [self.last(x)]}


class Reading(Blocks):
    """The root takes weights from modules that it has called, one of them on one rank only."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x) * self.scale
        x = torch.tanh(x @ self.first.weight) @ self.first.weight.T
        if self.rank == 1:
            x = nn.functional.linear(x, self.blocks[2][2].weight)
        return {"outputs": [self.last(x)]}


def made(model=None, optim=torch.optim.AdamW, bucket_bytes=600, **options):
    model = (model or Blocks()).to(device())
    optimizer = OSS(
        model.parameters(), optim, bucket_bytes=bucket_bytes, release_parameters=True, **{"lr": 1e-2, **options}
    )
    return model, optimizer, ShardedDataParallel(model, optimizer)


def backward(model, rank, step):
    loss_of(model(inputs(rank, step))["outputs"][0]).backward()


def train(model, optimizer, rank):
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, rank, step)
        optimizer.step()


def trained_by_ddp(rank, make=Blocks):
    model = make().to(device())
    train(DistributedDataParallel(model), torch.optim.AdamW(model.parameters(), lr=1e-2), rank)
    return model


def check(ours, theirs, what, is_exact=True):
    tolerances = {"rtol": 0, "atol": 0} if is_exact else {}
    for a, b in zip(values(ours), values(theirs), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m: f"{what}: {m}", **tolerances)


def _as_ddp(rank, world_size):
    plain = trained_by_ddp(rank)
    for setting in SETTINGS:
        for is_checkpointed in (False, True):
            model, optimizer, parallel = made(Blocks(is_checkpointed), **setting)
            train(parallel, optimizer, rank)
            optimizer.wait_for_parameters()
            check(model, plain, f"{setting} {is_checkpointed=}", is_exact=world_size == 2)


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.costly)])
def test_trains_as_ddp(run_ranks, world_size):
    run_ranks(world_size, _as_ddp)


def _weights_of_others(rank, world_size):
    plain = trained_by_ddp(rank, lambda: Reading(rank))
    for setting in SETTINGS:
        model, optimizer, parallel = made(Reading(rank), **setting)
        whole, seen = resident(model), []
        with pytest.raises(TypeError):
            parallel(inputs(rank, 0), "an argument too many")
        train(parallel, optimizer, rank)
        optimizer.wait_for_parameters()
        check(model, plain, f"{setting}")
        model.last.register_forward_hook(lambda *_, model=model, seen=seen: seen.append(resident(model)))
        backward(parallel, rank, 0)
        assert setting == {"partition": "tensor"} or seen[0] < whole, "nothing is resharded"


def test_a_module_takes_weights_from_others(run_ranks):
    run_ranks(2, _weights_of_others)


def resident(model):
    """Bytes of parameters that have memory."""

    def has_memory(parameter):
        try:
            return parameter.data_ptr() != 0
        except RuntimeError:
            return False

    return sum(parameter.nbytes for parameter in model.parameters() if has_memory(parameter))


def _memory(rank, world_size):
    model, optimizer, parallel = made(step_in_backward=True)
    train(parallel, optimizer, rank)
    everything = resident(model)
    seen = []
    model.last.register_forward_pre_hook(lambda *_: seen.append(resident(model)))
    loss = loss_of(parallel(inputs(rank, 0))["outputs"][0])
    assert seen[0] < everything / 2, "blocks that have run keep their parameters"
    assert resident(model) < everything / 2
    with pytest.raises(RuntimeError, match=r"parameter 'blocks.1.0.weight' has no values between"):
        model.blocks[1][0].weight.sum()
    loss.backward()
    assert resident(model) == everything
    optimizer.step()

    before = values(model)
    parallel(inputs(rank, 0))  # and no backward
    parallel.state_dict()
    for now, then in zip(values(model), before, strict=True):
        assert now.equal(then), "a forward without backward has changed parameters"
    with torch.no_grad():
        parallel(inputs(rank, 0))
    assert resident(model) == everything
    parallel.eval()
    parallel(inputs(rank, 0))
    assert resident(model) == everything, "an evaluation releases parameters"
    parallel.train()
    model(inputs(rank, 0))
    assert resident(model) == everything, "a forward of the module itself releases parameters"


def test_memory_is_gone_between_forward_and_backward(run_ranks):
    run_ranks(2, _memory)


def _memory_between_steps(rank, world_size):
    for in_backward in (False, True):
        model, optimizer, parallel = made(step_in_backward=in_backward, overlap_gather=True)
        everything = resident(model)
        seen = []

        def note(*_, model=model, seen=seen):
            seen.append(resident(model))

        for block in model.blocks:
            block.register_forward_hook(note)
        backward(parallel, rank, 0)
        assert max(seen) == everything, "the first forward finds the blocks"
        for step in range(1, STEPS):
            optimizer.step()
            assert resident(model) < everything / 2, f"after step {step} the model is whole"
            with pytest.raises(RuntimeError, match=r"parameter 'blocks.1.0.weight' has no values .* between steps"):
                model.blocks[1][0].weight.sum()
            seen.clear()
            backward(parallel, rank, step)
            assert len(seen) == len(model.blocks) + 1
            # Of the middle blocks there are two at a time, that which runs and the next.
            assert max(seen[1:3]) < 0.7 * everything, f"forward {step} gathers more than it needs"
        optimizer.step()

        optimizer.wait_for_parameters()
        assert resident(model) == everything
        train(parallel, optimizer, rank)
        parallel.state_dict()
        assert resident(model) == everything
        train(parallel, optimizer, rank)
        with torch.no_grad():
            parallel(inputs(rank, 0))
        assert resident(model) == everything, "an evaluation has not brought all back"


def test_memory_is_gone_between_steps(run_ranks):
    run_ranks(2, _memory_between_steps)


def _groups(rank, world_size):
    """A bucket of all biases, which every block needs, does not have all others gathered with it."""
    plain = trained_by_ddp(rank)
    model = Blocks().to(device())
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == has_rows]} for has_rows in (True, False)]
    options = {"lr": 1e-2, "bucket_bytes": 1100, "release_parameters": True, "overlap_gather": True}
    optimizer = OSS(groups, torch.optim.AdamW, step_in_backward=True, **options)
    parallel = ShardedDataParallel(model, optimizer)
    everything = resident(model)
    seen = []
    for step in range(STEPS):
        backward(parallel, rank, step)
        optimizer.step()
        if step == 0:
            model.blocks[0].register_forward_hook(lambda *_: seen.append(resident(model)))
    assert max(seen) < 0.7 * everything
    optimizer.wait_for_parameters()
    check(model, plain, "groups", is_exact=True)


def test_parameter_groups(run_ranks):
    run_ranks(2, _groups)


def _broken_off(rank, world_size):
    """What fails on one rank only, and what all then leave: the next step is as if it had not been."""

    def fail(*_):
        raise ValueError("out of memory, say")

    for setting in SETTINGS:
        results = []
        for is_broken in (False, True):
            model, optimizer, parallel = made(**setting)
            train(parallel, optimizer, rank)
            if is_broken:
                for module in (model.last, model.blocks[1], model.last, model.blocks[1]):
                    hook = module.register_forward_pre_hook(fail) if rank == 0 else None
                    if hook is None:
                        parallel(inputs(rank, 0))
                    else:
                        with pytest.raises(ValueError, match="say"):
                            parallel(inputs(rank, 0))
                        hook.remove()
                    if module is model.blocks[1]:
                        parallel.state_dict()
            train(parallel, optimizer, rank)
            optimizer.wait_for_parameters()
            results.append(model)
        check(*results, f"{setting}")


@pytest.mark.costly
def test_a_forward_that_one_rank_breaks_off_leaves_nothing(run_ranks):
    run_ranks(2, _broken_off)


def _clipped_scaled_and_summed(rank, world_size):
    results = []
    for release in (False, True):
        model = Blocks().to(device())
        optimizer = OSS(model.parameters(), torch.optim.AdamW, bucket_bytes=600, release_parameters=release, lr=1e-2)
        parallel, scaler = ShardedDataParallel(model, optimizer), ShardedGradScaler()
        for step in range(STEPS):
            optimizer.zero_grad()
            with parallel.no_sync():
                scaler.scale(loss_of(parallel(inputs(rank, 9 + step))["outputs"][0])).backward()
            scaler.scale(loss_of(parallel(inputs(rank, step))["outputs"][0])).backward()
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm(0.01)
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                model.scale.mul_(0.9)  # by hand, between steps
        results.append(model)
    check(*results, "clipped, scaled and summed")


def test_gradients_can_be_clipped_scaled_and_summed(run_ranks):
    run_ranks(2, _clipped_scaled_and_summed)


def _two_optimizers(rank, world_size):
    plain = trained_by_ddp(rank)
    for in_backward in (False, True, True):
        model = Blocks().to(device())
        weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
        options = {"lr": 1e-2, "bucket_bytes": 600, "release_parameters": True, "step_in_backward": in_backward}
        optimizers = [OSS(group, torch.optim.AdamW, **options) for group in (weights, others)]
        parallel = ShardedDataParallel(model, optimizers)
        for step in range(STEPS):
            parallel.zero_grad()
            backward(parallel, rank, step)
            for optimizer in optimizers:
                optimizer.step()
        check(model, plain, "two optimizers")
        # Groups of the same names are made anew when all of these are gone.
        del model, weights, others, optimizers, optimizer, parallel
        gc.collect()


def test_several_optimizers_one_after_another(run_ranks):
    run_ranks(2, _two_optimizers)


def _refusals(rank, world_size):
    for in_backward in (False, True):
        model, optimizer, parallel = made(overlap_gather=True, step_in_backward=in_backward)
        train(parallel, optimizer, rank)
        loss = loss_of(parallel(inputs(rank, 0))["outputs"][0])
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        weight = model.blocks[1][0].weight
        before, weight.data = weight.data, torch.zeros(16, 16, device=device())
        with pytest.raises(RuntimeError, match=r"'blocks.1.0.weight' was given other data while it had no values"):
            parallel(inputs(rank, 0))
        weight.data = before
        train(parallel, optimizer, rank)

    _, _optimizer, parallel = made()
    with pytest.raises(RuntimeError, match=r"release_parameters cannot be used within join"), parallel.join():
        backward(parallel, rank, 0)

    @dataclass
    class Opaque:
        value: torch.Tensor

    class Block(nn.Linear):
        def forward(self, x):
            return Opaque(super().forward(x))

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(10, 10) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x).value
            return x

    _, _optimizer, parallel = made(Root())
    for _ in range(2):
        with pytest.raises(TypeError, match="Block returns Opaque"):
            parallel(inputs(rank, 0))


@pytest.mark.costly
def test_what_cannot_be_followed_is_refused(run_ranks):
    run_ranks(2, _refusals)
