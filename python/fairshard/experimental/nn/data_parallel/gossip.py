"""The module in which FairScale has SlowMoDistributedDataParallel, for imports from there.

Of what else FairScale's module has, a graph is chosen by its name, ``graph="ring"`` for instance, and the rest is our
core's own work.
"""

from typing import Any

from fairshard.experimental.nn.data_parallel.slowmo_ddp import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel

__all__ = ["SlowMoBaseAlgorithm", "SlowMoDistributedDataParallel"]

_BY_NAME = "give SlowMoDistributedDataParallel the option"
_INSTEAD = {
    "DynamicBipartiteExponentialGraph": f'{_BY_NAME} graph="exponential"',
    "DynamicBipartiteLinearGraph": f'{_BY_NAME} graph="ring"',
    "DynamicDirectedExponentialGraph": f'{_BY_NAME} graph="exponential"',
    "DynamicDirectedLinearGraph": f'{_BY_NAME} graph="ring"',
    "GraphManager": f'{_BY_NAME} graph="exponential" or "ring"',
    "NPeerDynamicDirectedExponentialGraph": f'{_BY_NAME} graph="exponential"',
    "RingGraph": f'{_BY_NAME} graph="ring"',
    "MixingManager": f'{_BY_NAME} mixing="uniform"',
    "UniformMixing": f'{_BY_NAME} mixing="uniform"',
    "PushPull": f"{_BY_NAME} slowmo_base_algorithm=SlowMoBaseAlgorithm.SGP",
    "PushSum": f"{_BY_NAME} slowmo_base_algorithm=SlowMoBaseAlgorithm.SGP",
    "communicate": "use the collectives of fairshard.comm",
    "CudaEventRecorder": "use torch.profiler",
}


def _refused(name: str) -> type:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"fairshard has no {name} of its own: {_INSTEAD[name]}")

    return type(name, (), {"__doc__": f"Not here: {_INSTEAD[name]}.", "__init__": refuse})


def __getattr__(name: str) -> Any:
    """Names of FairScale's that are not here can be imported; when they are called, they say what there is instead."""
    if name in _INSTEAD:
        return _refused(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
