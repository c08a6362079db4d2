"""Changes of dtype, master weights and low-precision gathers, bit for bit against one plain process."""

import pytest
import torch
import torch.distributed as dist

from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

ADAMW = (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1})
SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})


def dtype_of(model):
    return next(model.parameters()).dtype


def loss(model, rank, step):
    return loss_of(model(inputs(rank, step).to(dtype_of(model))))


def step_sharded(parallel, optimizer, rank, step):
    loss(parallel, rank, step).backward()
    optimizer.step()
    optimizer.zero_grad()


def averaged_gradients(model, step, world_size):
    """What the ranks of a reduction would get, taken in float32; over NCCL, then, in the gradients' own dtype."""
    total = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in model.parameters()]
    for rank in range(world_size):
        gradients = torch.autograd.grad(loss(model, rank, step), list(model.parameters()))
        for one, gradient in zip(total, gradients, strict=True):
            one += gradient.float() / world_size
    return [one.to(dtype_of(model)) for one in total] if device().type == "cuda" else total


def step_plain(stepped, model, optimizer, step, world_size):
    """Steps ``stepped``, a list of tensors that ``optimizer`` has, by the gradients of ``model``."""
    for tensor, gradient in zip(stepped, averaged_gradients(model, step, world_size), strict=True):
        tensor.grad = gradient.to(tensor.dtype)
    optimizer.step()


def check(model, plain, what):
    for ours, theirs in zip(values(model), values(plain), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.equal(theirs), (what, (ours - theirs).abs().max())


def check_same_everywhere(model, world_size):
    for value in values(model):
        everybody = [torch.empty_like(value) for _ in range(world_size)]
        dist.all_gather(everybody, value)
        assert all(other.equal(value) for other in everybody)


def cast(model, optimizer, dtype):
    """A plain optimizer's state takes up the dtype of its parameters, as in load_state_dict."""
    model.to(dtype)
    for state in optimizer.state.values():
        for key, value in state.items():
            if key != "step" and torch.is_tensor(value):
                state[key] = value.to(dtype)


def _casts(rank, world_size):
    changes = {2: torch.bfloat16, 5: torch.float32, 7: torch.bfloat16, 8: torch.float64}
    for optim, options in (ADAMW, SGD):
        for layout in ({"bucket_bytes": 600}, {"partition": "tensor"}, {"overlap_gather": True}):
            model, plain = mlp(), mlp()
            optimizer = OSS(model.parameters(), optim, **layout, **options)
            parallel = ShardedDataParallel(model, optimizer)
            plain_optimizer = optim(plain.parameters(), **options)
            for step in range(10):
                if step in changes:
                    assert parallel.to(changes[step]) is parallel
                    cast(plain, plain_optimizer, changes[step])
                step_sharded(parallel, optimizer, rank, step)
                step_plain(list(plain.parameters()), plain, plain_optimizer, step, world_size)
                optimizer.wait_for_parameters()
                if step < 8:  # the averages of the simulation are float32
                    check(model, plain, (optim, layout, step))
            for ours, theirs in zip(values(model), values(plain), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
                assert ours.dtype == torch.float64

    for arguments in (("meta",), (torch.device("meta"), torch.float32), (torch.empty(1, device="meta"),)):
        with pytest.raises(RuntimeError, match=rf"cannot move from {device()} to meta.*before it is wrapped"):
            parallel.to(*arguments)
    assert parallel.to(device()) is parallel
    step_sharded(parallel, optimizer, rank, 20)


LOW = torch.bfloat16


def _exact_copies(rank, world_size, kind, dtype):
    for optim, options in (ADAMW, SGD):
        for layout in ({"bucket_bytes": 600}, {"partition": "tensor"}):
            model, plain = mlp().to(dtype), mlp().to(dtype)
            exact = [value.float() for value in values(plain)]
            exact_optimizer = optim(exact, **options)
            optimizer = OSS(model.parameters(), optim, **kind, **layout, **options)
            parallel = ShardedDataParallel(model, optimizer)
            for step in range(8):
                if step == 5:  # values that are loaded are followed; here all of them are new
                    loaded = {name: -1.25 * value for name, value in plain.state_dict().items()}
                    parallel.load_state_dict(loaded)
                    plain.load_state_dict(loaded)
                    for tensor, value in zip(exact, loaded.values(), strict=True):
                        tensor.copy_(value)
                step_sharded(parallel, optimizer, rank, step)
                step_plain(exact, plain, exact_optimizer, step, world_size)
                with torch.no_grad():
                    for parameter, value in zip(plain.parameters(), exact, strict=True):
                        parameter.copy_(value.to(LOW))
                check_same_everywhere(model, world_size)
                check(model, plain, (optim, kind, layout, step))


def _casts_and_master_weights(rank, world_size):
    _casts(rank, world_size)
    _exact_copies(rank, world_size, {"master_weights": True}, LOW)
    return True


@pytest.mark.costly
def test_casts_between_steps_and_master_weights(run_ranks):
    assert all(run_ranks(2, _casts_and_master_weights))


def _narrow_gathers(rank, world_size):
    _exact_copies(rank, world_size, {"gather_dtype": LOW}, torch.float32)
    return True


def test_gathers_in_low_precision(run_ranks):
    assert all(run_ranks(2, _narrow_gathers))
