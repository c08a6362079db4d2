"""200 calls on 4 ranks (2 nodes of 2) against a simulation in numpy, for every algorithm."""

import numpy as np
import pytest
import torch
from torch import nn

from fairshard.experimental.nn.data_parallel import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel
from support import outer_simulation as simulation
from support.ranks import device

CALLS = 200
SLOW = {"slowmo_frequency": 8, "slowmo_momentum": 0.6, "slowmo_lr": 0.9}
NESTEROV = {"outer_optimizer": "nesterov", "slowmo_frequency": 10, "slowmo_momentum": 0.9, "slowmo_lr": 0.7}
STREAMING = {**NESTEROV, "fragments": 2, "fragment_delay": 3, "local_weight": 0.5}
SGP = {"slowmo_base_algorithm": SlowMoBaseAlgorithm.SGP, "slowmo_sgp_average_params": True}

SCENARIOS = {
    "localsgd": (lambda: simulation.LocalSgd(2), {"slowmo_momentum": 0}),
    "slow momentum": (lambda: simulation.SlowMo(2), SLOW),
    "slow momentum, whole buffers": (lambda: simulation.SlowMo(2), {**SLOW, "slowmo_memory_efficient": False}),
    "diloco": (lambda: simulation.DiLoCo(2), NESTEROV),
    "streaming": (lambda: simulation.Streaming(2), STREAMING),
    "sgp": (lambda: simulation.Sgp(2, False, False), {**SGP, "slowmo_momentum": 0}),
    "overlapped sgp": (lambda: simulation.Sgp(2, True, False), {**SGP, "slowmo_momentum": 0, "overlap": True}),
    "sgp, slow momentum": (lambda: simulation.Sgp(2, False, True), {**SGP, **SLOW}),
    "overlapped sgp, slow momentum": (lambda: simulation.Sgp(2, True, True), {**SGP, **SLOW, "overlap": True}),
}


# Where a rounding error puts a number on the other side of a code's border, the code is another one: a hundredth of
# the largest difference, given back by the next one.
INT8 = {**NESTEROV, "wire": "int8"}
INT8_TOLERANCE = 2e-3


def make_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), simulation.start(), strict=True):
            parameter.copy_(torch.from_numpy(values))
    return model.to(device())


def _model_after_training(rank, ranks_per_node, options):
    model = make_model()
    parallel = SlowMoDistributedDataParallel(model, nprocs_per_node=ranks_per_node, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(simulation.RATE))
    for k in range(1, CALLS + 1):
        x, target = (torch.as_tensor(values, device=device()) for values in simulation.data(rank, k))
        parallel.zero_grad()
        (parallel(x) - target).pow(2).mean().backward()
        optimizer.step()
        parallel.perform_slowmo(optimizer)
    return [parameter.detach().cpu().numpy().copy() for parameter in model.parameters()]


def _train(rank, world_size):
    return {name: _model_after_training(rank, 2, options) for name, (_, options) in SCENARIOS.items()}


def _train_with_int8(rank, world_size):
    return _model_after_training(rank, 1, INT8)


@pytest.mark.costly
def test_every_algorithm_is_the_published_one(run_ranks):
    ranks = run_ranks(4, _train)
    for name, (make, _) in SCENARIOS.items():
        nodes = simulation.run(make(), CALLS)
        for rank, results in enumerate(ranks):
            for ours, theirs in zip(results[name], nodes[rank // 2], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6, err_msg=f"{name}, rank {rank}")
        start = simulation.start()[0]
        assert np.abs(nodes[0][0] - start).max() > 0.01, name


def test_codes_of_8_bits_lose_nothing_in_the_long_run(run_ranks):
    ranks = run_ranks(4, _train_with_int8)
    simulated = simulation.run(simulation.Int8DiLoCo(4), CALLS, ranks_per_node=1)
    exact = simulation.run(simulation.DiLoCo(4), CALLS, ranks_per_node=1)
    for results in ranks:
        for ours, theirs in zip(results, simulated[0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=INT8_TOLERANCE)
    assert max(np.abs(a - b).max() for a, b in zip(simulated[0], exact[0], strict=True)) > 0
