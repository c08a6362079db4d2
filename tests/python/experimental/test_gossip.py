"""The place from which FairScale's users import SlowMoDistributedDataParallel."""

import pytest

import fairshard.experimental.nn.data_parallel.gossip as gossip
from fairshard.experimental.nn import data_parallel

#: What FairScale 0.4.13 has in its module of that name.
NOT_OURS = (
    "CudaEventRecorder",
    "DynamicBipartiteExponentialGraph",
    "DynamicBipartiteLinearGraph",
    "DynamicDirectedExponentialGraph",
    "DynamicDirectedLinearGraph",
    "GraphManager",
    "MixingManager",
    "NPeerDynamicDirectedExponentialGraph",
    "PushPull",
    "PushSum",
    "RingGraph",
    "UniformMixing",
    "communicate",
)


def test_slow_momentum_is_there():
    assert gossip.SlowMoDistributedDataParallel is data_parallel.SlowMoDistributedDataParallel
    assert gossip.SlowMoBaseAlgorithm.SGP is data_parallel.SlowMoBaseAlgorithm.SGP


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_is_not_here_says_what_there_is_instead(name):
    with pytest.raises(NotImplementedError, match=f"no {name} of its own: (give|use)"):
        getattr(gossip, name)(0, 2)


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="surprise"):
        gossip.surprise  # noqa: B018
