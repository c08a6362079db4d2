"""SlowMoDistributedDataParallel over nodes that shard (OSS) or page (OffloadModel): the bits of plain nodes."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fairshard.checkpoint import Checkpoint
from fairshard.experimental.nn.data_parallel import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel
from fairshard.experimental.nn.offload import OffloadModel
from fairshard.nn.data_parallel import ShardedDataParallel
from fairshard.optim import OSS, ShardedGradScaler
from support.models import inputs, loss_of, mlp, values
from support.parallel import MODES, SHARDED, limited
from support.ranks import device

SLOW = {"slowmo_momentum": 0.6, "slowmo_frequency": 4, "localsgd_frequency": 2}
DILOCO = {"outer_optimizer": "nesterov", "slowmo_momentum": 0.9, "slowmo_lr": 0.7, "slowmo_frequency": 5}
SGP = {**SLOW, "slowmo_base_algorithm": SlowMoBaseAlgorithm.SGP}
ALGORITHMS = {
    "LocalSGD": {"slowmo_momentum": 0, "localsgd_frequency": 3},
    "SlowMo": SLOW,
    "SlowMo, whole buffers": {**SLOW, "slowmo_memory_efficient": False, "comm_device": "cpu"},
    "DiLoCo": DILOCO,
    "DiLoCo, bfloat16": {**DILOCO, "wire": "bfloat16"},
    "streaming": {**DILOCO, "slowmo_frequency": 6, "fragments": 2, "fragment_delay": 2, "local_weight": 0.5},
    "SGP": {**SGP, "slowmo_momentum": 0, "synch_freq": 2},
    "SGP, overlapped": {**SGP, "overlap": True},
    "SGP, averaged": {**SGP, "slowmo_sgp_average_params": True},
}
#: What is kept: of an exact average, of a fragment under way, of gossip.
ELASTIC = ("SlowMo", "SGP, overlapped", "streaming")
NODE_MODES = [mode for mode in SHARDED if mode != "optimizer"]
OPTIMIZERS = {torch.optim.SGD: {"lr": 0.1, "momentum": 0.9}, torch.optim.AdamW: {"lr": 0.01}}


def plain(rank, optim=torch.optim.SGD, **algorithm):
    model = mlp(rank)
    parallel = SlowMoDistributedDataParallel(model, 2, **algorithm)
    return parallel, optim(model.parameters(), **OPTIMIZERS[optim])


def sharded(rank, node, mode, optim=torch.optim.SGD, options=None, **algorithm):
    model = mlp(rank)
    oss = OSS(
        model.parameters(), optim, group=node, bucket_bytes=2000, **MODES[mode], **OPTIMIZERS[optim], **options or {}
    )
    return SlowMoDistributedDataParallel(model, 2, local_node_group=node, **algorithm), oss


def train(parallel, optimizer, rank, steps, scaler=None):
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(parallel(inputs(rank, step)))
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        parallel.perform_slowmo(optimizer)


def trained_values(parallel):
    parallel.state_dict()  # gathers within the node, where that is needed
    return values(parallel.module)


def arrays(parallel):
    return [value.cpu().numpy() for value in trained_values(parallel)]


def assert_same(ours, theirs, what):
    for own, other in zip(trained_values(ours), trained_values(theirs), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, msg=lambda m: f"{what}: {m}")


def _algorithms(rank, world_size):
    node, _ = dist.new_subgroups(2)
    for name, algorithm in ALGORITHMS.items():
        for optim in OPTIMIZERS if name == "SlowMo" else [torch.optim.SGD]:
            theirs = plain(rank, optim, **algorithm)
            train(*theirs, rank, range(13))
            for mode in NODE_MODES:
                with limited(60):
                    ours = sharded(rank, node, mode, optim, **algorithm)
                    train(*ours, rank, range(13))
                    assert_same(ours[0], theirs[0], (name, mode, optim.__name__))
            theirs[0].average_parameters()
            ours[0].average_parameters()
            assert_same(ours[0], theirs[0], (name, "at the end"))
    return True


@pytest.mark.costly
def test_every_algorithm_over_every_mode_has_the_bits_of_plain_nodes(run_ranks):
    assert all(run_ranks(4, _algorithms))


def _shares(rank, world_size):
    """What each rank holds and sends between nodes is its share; nothing is sent there between synchronisations."""
    node, _ = dist.new_subgroups(2)
    parallel, oss = sharded(rank, node, "gradients", **SLOW)
    theirs = plain(rank, **SLOW)
    totals = []
    for each in ((parallel, oss), theirs):
        train(*each, rank, range(4))
        held = sum(value.numel() for name, value in each[0].outer_state()[0].items() if name.startswith("outer"))
        totals.append(torch.tensor([each[0].report()["inter_node_bytes"], held]))
        dist.all_reduce(totals[-1], group=node)
    # Of both ranks of a node: all of it once. Where slices begin is aligned, which adds a little.
    assert (totals[0] <= 1.05 * totals[1]).all() and (totals[0] >= 0.95 * totals[1]).all()
    before = parallel.report()
    train(parallel, oss, rank, [4])
    after = parallel.report()
    assert after["inter_node_bytes"] == before["inter_node_bytes"]
    assert after["intra_node_bytes"] > before["intra_node_bytes"]  # gradients and gathers of the OSS count


def _resumes(rank, world_size, folder):
    node, _ = dist.new_subgroups(2)
    for name in ("SlowMo", "streaming", "SGP, overlapped"):
        for mode in ("gradients", "all"):
            parallel, oss = sharded(rank, node, mode, torch.optim.AdamW, **ALGORITHMS[name])
            train(parallel, oss, rank, range(7))
            path = f"{folder}/{name}-{mode}"
            with Checkpoint(path, {"model": parallel, "optimizer": oss}) as checkpoint:
                checkpoint.save(7)
            train(parallel, oss, rank, range(7, 17))
            resumed = sharded(5, node, mode, torch.optim.AdamW, **ALGORITHMS[name])
            with Checkpoint(path, {"model": resumed[0], "optimizer": resumed[1]}) as checkpoint:
                assert checkpoint.load().step == 7
            train(*resumed, rank, range(7, 17))
            assert_same(resumed[0], parallel, (name, mode))


def _saves_for_others(rank, world_size, folder):
    """Where all nodes have one model, and in the middle of a round, with a fragment under way; then goes on."""
    node, _ = dist.new_subgroups(2)
    results = {}
    for name in ELASTIC:
        for steps in (8, 11):
            parallel, oss = sharded(rank, node, "gradients", torch.optim.AdamW, **ALGORITHMS[name])
            train(parallel, oss, rank, range(steps))
            with Checkpoint(f"{folder}/{name}-{steps}", {"model": parallel, "optimizer": oss}) as checkpoint:
                checkpoint.save(steps)
            then = arrays(parallel)
            train(parallel, oss, rank, range(steps, steps + 9))
            results[name, steps] = then, arrays(parallel)
    return results


def _loads_of_others(rank, world_size, ranks_per_node, folder, saved):
    """Nodes of other sizes and numbers: with what a node of theirs had, sharded and not, and both go on alike."""
    node, _ = dist.new_subgroups(ranks_per_node)
    number = rank // ranks_per_node
    for (name, steps), (loaded, later) in saved[2 * (number % 2)].items():
        results = []
        for is_sharded in (True, False):
            model = mlp(7)
            options = OPTIMIZERS[torch.optim.AdamW]
            optimizer = OSS(model.parameters(), torch.optim.AdamW, group=node, **options) if is_sharded else None
            optimizer = optimizer or torch.optim.AdamW(model.parameters(), **options)
            parallel = SlowMoDistributedDataParallel(model, ranks_per_node, local_node_group=node, **ALGORITHMS[name])
            with Checkpoint(f"{folder}/{name}-{steps}", {"model": parallel, "optimizer": optimizer}) as checkpoint:
                assert checkpoint.load().step == steps
            assert all(map(np.array_equal, arrays(parallel), loaded)), (name, steps)
            train(parallel, optimizer, rank, range(steps, steps + 9))
            if (world_size, ranks_per_node) == (4, 2):  # the nodes that there were
                assert all(map(np.array_equal, arrays(parallel), later)), (name, steps)
            results.append(parallel)
        assert_same(*results, (name, steps))
    return True


@pytest.mark.costly
def test_other_nodes_and_ranks_go_on(run_ranks, tmp_path):
    saved = run_ranks(4, _saves_for_others, str(tmp_path))
    for world_size, ranks_per_node in ((4, 2), (4, 1), (2, 2), (3, 1), (3, 3)):
        assert all(run_ranks(world_size, _loads_of_others, ranks_per_node, str(tmp_path), saved))


def _precision(rank, world_size):
    """bfloat16 weights with master weights: nodes average what is exact, and all ranks have the same."""
    node, _ = dist.new_subgroups(2)
    for mode in ("gradients", "all"):
        parallel, oss = sharded(rank, node, mode, torch.optim.AdamW, {"gather_dtype": torch.bfloat16}, **SLOW)
        theirs = plain(rank, torch.optim.AdamW, **SLOW)
        train(parallel, oss, rank, range(4))
        train(*theirs, rank, range(4))
        for own, other in zip(trained_values(parallel), trained_values(theirs[0]), strict=True):
            assert own.equal(own.bfloat16().float())
            torch.testing.assert_close(own, other, rtol=0.02, atol=0.01)
            first = own.clone()
            dist.broadcast(first, 0)
            assert first.equal(own)


def _scaled(rank, world_size):
    """A scaler of the node, which skips the same step on all of its ranks."""
    node, _ = dist.new_subgroups(2)
    theirs = plain(rank, torch.optim.AdamW, **SLOW)
    train(*theirs, rank, range(9))
    for make in (
        lambda: plain(rank, torch.optim.AdamW, **SLOW),
        lambda: sharded(rank, node, "gradients", torch.optim.AdamW, **SLOW),
    ):
        parallel, optimizer = make()
        scaler = ShardedGradScaler(init_scale=8.0, process_group=node, device=device().type)
        train(parallel, optimizer, rank, range(9), scaler)
        assert_same(parallel, theirs[0], "scaled")


def _paged(rank, world_size):
    """A node that pages its model, one that shards it as well, and one of a single rank that steps in backward."""
    node, _ = dist.new_subgroups(2)
    optim, options = torch.optim.AdamW, {"lr": 0.01, "fused": True}
    alone, _ = dist.new_subgroups(1)

    def trained(model, optimizer, ranks, group):
        parallel = SlowMoDistributedDataParallel(model, ranks, local_node_group=group, **SLOW)
        train(parallel, optimizer, rank, range(9))
        return values(model)

    for ranks, group in ((2, node), (1, alone)):
        model = mlp(rank).cpu()
        expected = trained(model, optim(model.parameters(), **options), ranks, group)
        for kind in ("paged", "sharded") if ranks == 2 else ("paged", "stepped in backward"):
            model = mlp(rank).cpu()
            inner = optim(model.parameters(), **options)
            paged = OffloadModel(model, device(), num_slices=3, optimizer=inner if "stepped" in kind else None)
            oss = OSS(paged.parameters(), optim, group=group, **options) if kind == "sharded" else None
            for own, other in zip(trained(paged, oss or inner, ranks, group), expected, strict=True):
                torch.testing.assert_close(own, other, rtol=0, atol=0, msg=lambda m, kind=kind: f"{kind}: {m}")
    paged = OffloadModel(model := mlp(rank).cpu(), device(), optimizer=optim(model.parameters(), **options))
    for wrap in (lambda: SlowMoDistributedDataParallel(paged, 2), lambda: ShardedDataParallel(paged)):
        with pytest.raises(
            ValueError, match=r"steps in backward .its option optimizer., before its gradients could be"
        ):
            wrap()


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([mlp()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _grows(rank, world_size):
    """A layer that comes later is rank 0's everywhere, and synchronised from then on; a frozen one is left alone."""
    node, _ = dist.new_subgroups(2)
    models = []
    for is_sharded in (True, False):
        model = Growing()
        frozen = model.layers[0][0].bias.requires_grad_(False)
        trained = [p for p in model.parameters() if p is not frozen]
        options = OPTIMIZERS[torch.optim.SGD]
        optimizer = (
            OSS(trained, torch.optim.SGD, group=node, **options) if is_sharded else torch.optim.SGD(trained, **options)
        )
        parallel = SlowMoDistributedDataParallel(model, 2, local_node_group=node, **SLOW)
        before = frozen.clone()
        train(parallel, optimizer, rank, range(5))
        torch.manual_seed(rank)
        model.layers.append(nn.Linear(5, 5))
        optimizer.add_param_group({"params": list(model.layers[1].parameters())})
        train(parallel, optimizer, rank, range(5, 12))
        assert frozen.equal(before)
        models.append(parallel)
    assert_same(*models, "grown")


def _errors(rank, world_size):
    node, _ = dist.new_subgroups(2)
    apart = "nodes would never train apart"
    everywhere = mlp()
    optimizer = OSS(everywhere.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=f"partitions parameters across 4 ranks, but a node has 2.*{apart}"):
        SlowMoDistributedDataParallel(everywhere, 2)
    other, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    crossed = mlp()
    optimizer = OSS(crossed.parameters(), torch.optim.SGD, group=other, lr=0.1)
    with pytest.raises(ValueError, match=f"the OSS has rank . where this node has rank .*{apart}"):
        SlowMoDistributedDataParallel(crossed, 2)
    parallel, optimizer = sharded(rank, node, "gradients", **SLOW)
    with pytest.raises(ValueError, match=r"belong to an OSS, but perform_slowmo.. got a SGD"):
        parallel.perform_slowmo(torch.optim.SGD(mlp().parameters(), lr=0.1))
    with pytest.raises(ValueError, match="got fp32_params with an OSS"):
        parallel.perform_slowmo(optimizer, list(parallel.parameters()))
    partly = mlp()
    oss_of_some = OSS(list(partly.parameters())[:2], torch.optim.SGD, group=node, lr=0.1)
    with pytest.raises(ValueError, match=r"'2.weight' requires a gradient, but is not in the OSS"):
        SlowMoDistributedDataParallel(partly, 2, local_node_group=node)
    del oss_of_some, optimizer
    with pytest.raises(RuntimeError, match="the OSS that had the parameters of nodes which train apart is gone"):
        parallel.average_parameters()


def _scenarios(rank, world_size, folder):
    _shares(rank, world_size)
    _resumes(rank, world_size, folder)
    _precision(rank, world_size)
    _scaled(rank, world_size)
    if device().type == "cpu":  # on a GPU a paged model is stepped elsewhere than the plain one
        _paged(rank, world_size)
    _grows(rank, world_size)
    _errors(rank, world_size)
    return True


@pytest.mark.costly
def test_sharded_nodes_in_a_users_hands(run_ranks, tmp_path):
    assert all(run_ranks(4, _scenarios, str(tmp_path)))
