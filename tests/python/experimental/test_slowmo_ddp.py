"""SlowMoDistributedDataParallel in a user's hands. One start of processes serves several scenarios."""

import io
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fairshard.experimental.nn.data_parallel import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel
from fairshard.optim import OSS, AdaScale
from support.models import inputs, loss_of, mlp, values
from support.ranks import device

SLOW = {"slowmo_momentum": 0.6, "slowmo_frequency": 4, "localsgd_frequency": 2}
STREAMING = {
    "outer_optimizer": "nesterov",
    "slowmo_momentum": 0.9,
    "slowmo_lr": 0.7,
    "slowmo_frequency": 6,
    "fragments": 2,
    "fragment_delay": 2,
    "local_weight": 0.5,
    "wire": "int8",
}
SGP = {**SLOW, "slowmo_base_algorithm": SlowMoBaseAlgorithm.SGP, "overlap": True, "slowmo_frequency": 8}


def steps(parallel, optimizer, rank, begin, end):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(parallel(inputs(rank, step))).backward()
        optimizer.step()
        parallel.perform_slowmo(optimizer)


def same_on_all(tensors, group=None):
    for tensor in tensors:
        first = tensor.clone()
        dist.broadcast(first, dist.get_process_group_ranks(group or dist.group.WORLD)[0], group=group)
        assert first.equal(tensor)


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _resume(rank, world_size):
    for options in (SLOW, STREAMING, SGP, {**SLOW, "wire": "bfloat16", "slowmo_memory_efficient": False}):
        for pause in (7, 8, 11):
            model = mlp(rank)
            parallel = SlowMoDistributedDataParallel(model, 2, **options)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            steps(parallel, optimizer, rank, 0, pause)
            state, inner = saved_and_loaded(parallel.state_dict()), saved_and_loaded(optimizer.state_dict())
            steps(parallel, optimizer, rank, pause, 25)

            twin = mlp(5)
            resumed = SlowMoDistributedDataParallel(twin, 2, **options)
            keys = set(state)
            resumed.load_state_dict(state)
            assert set(state) == keys  # the caller's dict is left alone
            twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01)
            twin_optimizer.load_state_dict(inner)
            steps(resumed, twin_optimizer, rank, pause, 25)
            for ours, theirs in zip(values(twin), values(model), strict=True):
                assert ours.equal(theirs), (options, pause)
    return True


@pytest.mark.costly
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run_ranks):
    assert all(run_ranks(4, _resume))


def _behaviours(rank, world_size):
    # groups of the user's own
    local = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    masters = dist.new_group([0, 2])  # FairScale's: the first rank of each node
    model = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6)).to(device())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel = SlowMoDistributedDataParallel(
            model, 2, local_node_group=local, master_group=masters, process_rank=rank, process_world_size=4
        )
    told = [str(w.message) for w in caught if "slow momentum" in str(w.message)]
    assert len(told) == (1 if rank == 0 else 0) and all("2 node(s) 0 served" in text for text in told)
    assert (parallel.slowmo_momentum, parallel.slowmo_lr, parallel.localsgd_frequency) == (0.5, 1.0, 3)
    assert parallel.slowmo and parallel.module is model and parallel.slowmo_frequency == 48
    with pytest.raises(AttributeError):
        parallel.slowmo_lr = 2.0

    # traffic between nodes at synchronisations only, buffers averaged, ranks of a node the same
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for call in range(1, 10):
        before = parallel.report()["inter_node_bytes"]
        steps(parallel, optimizer, rank, call, call + 1)
        assert (parallel.report()["inter_node_bytes"] > before) == (call % 3 == 0)
        same_on_all(values(model), local)
    same_on_all(values(model))
    report = parallel.report()
    assert report["calls"] == 9 and report["averages"] == 3 and report["intra_node_bytes_per_call"] > 0

    # the automatic momentum, and none
    assert not SlowMoDistributedDataParallel(mlp(), 2, slowmo_momentum="auto").slowmo
    assert SlowMoDistributedDataParallel(mlp(), 1, slowmo_momentum="auto").slowmo_momentum == 0.2

    # inner momentum is zeroed at a slow step, Adam's averages are kept; or as asked
    for optim, key, options, is_zeroed in (
        (torch.optim.SGD, "momentum_buffer", {}, True),
        (torch.optim.SGD, "momentum_buffer", {"zero_inner_momentum": False}, False),
        (torch.optim.AdamW, "exp_avg", {}, False),
        (torch.optim.AdamW, "exp_avg", {"zero_adam": True}, True),
    ):
        model = mlp()
        parallel = SlowMoDistributedDataParallel(model, 2, **SLOW, **options)
        optimizer = optim(model.parameters(), lr=0.01, **({"momentum": 0.9} if optim is torch.optim.SGD else {}))
        steps(parallel, optimizer, rank, 0, 4)
        assert all(bool(s[key].eq(0).all()) == is_zeroed for s in optimizer.state.values())

    # learning rates of 0, and that differ by group
    model = mlp()
    parallel = SlowMoDistributedDataParallel(model, 2, **SLOW)
    groups = [{"params": list(model[0].parameters()), "lr": 0.0}, {"params": list(model[2:].parameters()), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    first = values(model[0])
    steps(parallel, optimizer, rank, 0, 4)
    assert all(a.equal(b) for a, b in zip(values(model[0]), first, strict=True))
    assert all(bool(torch.isfinite(value).all()) for value in values(model))

    # parameters that are added; accumulation
    model.append(nn.Linear(5, 5).to(device()))
    optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.1})
    with parallel.no_sync():
        loss_of(parallel(inputs(rank, 0))).backward()
    steps(parallel, optimizer, rank, 4, 9)
    same_on_all(values(model), local)
    steps(parallel, optimizer, rank, 9, 12)
    same_on_all(values(model))

    # masters in full precision
    model = mlp().to(torch.bfloat16)
    parallel = SlowMoDistributedDataParallel(model, 2, **SLOW)
    master = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(master, lr=0.1)
    for _ in range(4):
        for tensor in master:
            tensor.add_(0.01 * (rank // 2))
        parallel.perform_slowmo(optimizer, fp32_params=iter(master))
    same_on_all(master)
    assert all(p.equal(m.bfloat16()) for p, m in zip(model.parameters(), master, strict=True))

    # SGP's weights
    model = mlp()
    parallel = SlowMoDistributedDataParallel(model, 1, graph="ring", **SGP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        steps(parallel, optimizer, rank, step, step + 1)
        weight = parallel.push_sum_weight + parallel._synchroniser.arriving_push_sum_weight()
        weight = torch.tensor(weight, dtype=torch.float64, device=device())
        dist.all_reduce(weight)
        assert weight.item() == pytest.approx(4) and parallel.push_sum_weight != 1
    return True


@pytest.mark.costly
def test_behaviours(run_ranks):
    assert all(run_ranks(4, _behaviours))


def _errors(rank, world_size):
    def refuses(match, *arguments, **options):
        with pytest.raises(ValueError, match=match):
            SlowMoDistributedDataParallel(mlp(), *arguments, **options)

    refuses("2 ranks do not make whole nodes of 3", 3)
    refuses("ranks per node is 0", 0)
    refuses("slowmo_frequency.* is 0", 1, slowmo_frequency=0)
    refuses("localsgd_frequency.* is 0", 1, localsgd_frequency=0)
    refuses("momentum is 1, but must be at least 0 and below 1", 1, slowmo_momentum=1.0)
    refuses("momentum is -0.5", 1, slowmo_momentum=-0.5)
    refuses("graph is 'star', but must be one of 'exponential', 'ring'", 1, graph="star")
    refuses("wire is 'int4'", 1, wire="int4")
    refuses("mixing is 'random'", 1, mixing="random")
    refuses("overlap needs push_sum", 1, overlap=True, push_sum=False)
    refuses("process_rank is 7", 1, process_rank=7)
    refuses("local_node_group has ranks", 1, local_node_group=dist.group.WORLD)

    model = mlp()
    parallel = SlowMoDistributedDataParallel(model, 1, **SLOW)
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"does not have parameter '0\.weight'"):
        parallel.perform_slowmo(other)
    with pytest.raises(ValueError, match="1 fp32_params for 6 parameters"):
        parallel.perform_slowmo(other, [torch.zeros(1)])
    state = parallel.state_dict()
    with pytest.raises(ValueError, match=r"has no 'error\.0'"):
        SlowMoDistributedDataParallel(mlp(), 1, **SLOW, wire="int8").load_state_dict(state)
    with pytest.raises(ValueError, match=r"has no '"):
        parallel.load_state_dict({f"module.{key}": value for key, value in mlp().state_dict().items()})
    plain = {f"module.{key}": value for key, value in mlp(3).state_dict().items()}
    parallel.load_state_dict(plain, strict=False)
    assert values(model)[0].equal(values(mlp(3))[0])

    # forgotten: one warning, and none if it is called
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(250):
            parallel(inputs(rank, step))
    assert [str(w.message)[:12] for w in caught] == ["101 forwards"]
    return True


def test_bad_input_is_refused_by_name_and_value(run_ranks):
    assert all(run_ranks(2, _errors))


def _oss(rank, world_size):
    for wrap in (lambda oss: oss, AdaScale):
        model = mlp(rank)
        parallel = SlowMoDistributedDataParallel(model, 1, **SLOW)
        optimizer = wrap(OSS(model.parameters(), torch.optim.SGD, lr=0.1))
        before = values(model)
        loss_of(parallel(inputs(rank, 0))).backward()
        with pytest.raises(ValueError, match="was made before this OSS"):
            optimizer.step()
        assert all(ours.equal(theirs) for ours, theirs in zip(values(model), before, strict=True))
    with pytest.raises(ValueError, match="was made before this OSS"):
        parallel.perform_slowmo(OSS(model.parameters(), torch.optim.SGD, lr=0.1))
    other = mlp(rank)  # which is no part of it
    optimizer = OSS(other.parameters(), torch.optim.SGD, lr=0.1)
    loss_of(other(inputs(0, 0))).backward()
    optimizer.step()


def test_an_oss_is_refused_before_it_steps(run_ranks):
    run_ranks(2, _oss)
