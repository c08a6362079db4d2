"""200 calls on 4 ranks (2 nodes of 2) against a simulation in numpy, for every algorithm."""

import numpy as np
import torch
from torch import nn

from fairshard.experimental.nn.data_parallel import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel
from support import outer_simulation as simulation
from support.ranks import run_ranks

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


def make_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), simulation.start(), strict=True):
            parameter.copy_(torch.from_numpy(values))
    return model


def _train(rank, world_size):
    results = {}
    for name, (_, options) in SCENARIOS.items():
        model = make_model()
        parallel = SlowMoDistributedDataParallel(model, nprocs_per_node=2, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=float(simulation.RATE))
        for k in range(1, CALLS + 1):
            x, target = simulation.data(rank, k)
            parallel.zero_grad()
            (parallel(torch.from_numpy(x)) - torch.tensor(target)).pow(2).mean().backward()
            optimizer.step()
            parallel.perform_slowmo(optimizer)
        results[name] = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    return results


def test_every_algorithm_is_the_published_one():
    ranks = run_ranks(4, _train)
    for name, (make, _) in SCENARIOS.items():
        nodes = simulation.run(make(), CALLS)
        for rank, results in enumerate(ranks):
            for ours, theirs in zip(results[name], nodes[rank // 2], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6, err_msg=f"{name}, rank {rank}")
        start = simulation.start()[0]
        assert np.abs(nodes[0][0] - start).max() > 0.01, name
