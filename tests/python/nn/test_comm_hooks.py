"""DDP's communication hooks average gradients of ours, and backward may be told to reduce nothing."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from fairshard import comm
from fairshard.nn.data_parallel import ShardedDataParallel
from support.models import inputs, loss_of, mlp
from support.parallel import MODES, assert_same, ddp, sharded, train


def power_sgd():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)


#: By name, what makes a state, and the hook.
HOOKS = {
    "allreduce": (lambda: dist.group.WORLD, default_hooks.allreduce_hook),
    "fp16": (lambda: None, default_hooks.fp16_compress_hook),
    "bf16": (lambda: None, default_hooks.bf16_compress_hook),
    "PowerSGD": (power_sgd, powerSGD_hook.powerSGD_hook),
}


def small_buckets(model):
    """Ours without an OSS, in several buckets."""
    return ShardedDataParallel(model, reduce_buffer_size=500), torch.optim.SGD(model.parameters(), lr=0.1)


def hooks_give_what_ddp_gives(rank):
    for name, (make_state, hook) in HOOKS.items():
        model = mlp()
        # PowerSGD approximates bucket by bucket: both have one, as the model is small.
        theirs = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1)
        theirs[0].register_comm_hook(make_state(), hook)
        train(*theirs, rank, range(4))
        ours = sharded(mlp(), "replicated", lr=0.1)
        ours[0].register_comm_hook(make_state(), hook)
        train(*ours, rank, range(4))
        assert_same(ours[0], theirs[0], name)
        if name != "PowerSGD":
            for ours in (small_buckets(mlp()), sharded(mlp(), "optimizer", lr=0.1)):
                train(*ours, rank, range(2))
                ours[0].register_comm_hook(make_state(), hook)  # also in the middle of a run
                train(*ours, rank, range(2, 4))
                if name == "allreduce":
                    assert_same(ours[0], theirs[0], name)


def a_hook_sees_buckets_of_ddp(rank):
    seen = []

    def look(state, bucket):
        seen.append((state, bucket.index(), bucket.is_last(), [p.shape for p in bucket.parameters()]))
        assert [g.shape for g in bucket.gradients()] == seen[-1][-1]
        return default_hooks.allreduce_hook(None, bucket)

    model = mlp()
    model[0].bias.requires_grad_(False)
    parallel, _ = small_buckets(model)
    parallel.register_comm_hook("state", look)
    loss_of(parallel(inputs(rank, 0))).backward()
    assert [each[:3] for each in seen] == [("state", 0, False), ("state", 1, False), ("state", 2, True)], seen
    assert sum(len(each[3]) for each in seen) == 5


def refusals(rank):
    ignored = lambda state, bucket: None  # noqa: E731
    parallel, _ = sharded(mlp(), "gradients", lr=0.1)
    with pytest.raises(ValueError, match=r"averages whole gradients, but those of parameter '0\.weight' are sharded"):
        parallel.register_comm_hook(None, ignored)
    loss_of(parallel(inputs(rank, 0))).backward()  # goes on as it was
    parallel = ShardedDataParallel(mlp(), reduce_dtype=torch.bfloat16)
    parallel.register_comm_hook(None, ignored)
    with pytest.raises(ValueError, match="leave reduce_dtype off"):
        parallel(inputs(rank, 0))
    parallel = ShardedDataParallel(mlp())
    with pytest.raises(TypeError, match="3 cannot be called"):
        parallel.register_comm_hook(None, 3)
    parallel.register_comm_hook(None, ignored)
    with pytest.raises(RuntimeError, match="a communication hook is registered already"):
        parallel.register_comm_hook(None, ignored)
    with pytest.raises(TypeError, match=r"must return a torch\.futures\.Future, but returned None"):
        loss_of(parallel(inputs(rank, 0))).backward()


def sync_can_be_switched(rank):
    """As DDP's no_sync(), until it is switched on again: in all modes."""
    theirs, their_optimizer = ddp(mlp(), lr=0.1)
    with theirs.no_sync():
        for step in (0, 1):
            loss_of(theirs(inputs(rank, step))).backward()
    loss_of(theirs(inputs(rank, 2))).backward()
    their_optimizer.step()
    for mode in MODES:
        parallel, optimizer = sharded(mlp(), mode, lr=0.1)
        group = comm.Group()
        parallel.set_requires_gradient_sync(False)
        for step in (0, 1):
            loss = loss_of(parallel(inputs(rank, step)))
            sent = group.sent_bytes
            loss.backward()
            assert group.sent_bytes == sent or (MODES[mode] or {}).get("release_parameters"), mode
        parallel.set_requires_gradient_sync(True)
        loss_of(parallel(inputs(rank, 2))).backward()
        optimizer.step()
        assert_same(parallel, theirs, mode)


def _hooks(rank, world_size):
    hooks_give_what_ddp_gives(rank)
    a_hook_sees_buckets_of_ddp(rank)
    refusals(rank)
    sync_can_be_switched(rank)
    return True


@pytest.mark.costly
def test_communication_hooks(run_ranks):
    assert all(run_ranks(2, _hooks))
