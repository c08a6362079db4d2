"""Strategies for Lightning's Trainer and Fabric: ``strategy="ddp_sharded"`` works once this is imported.

They belong to the Lightning that the program has imported: ``lightning``, or ``pytorch_lightning``, its older name.
"""

from fairshard.lightning._fabric import FabricShardedStrategy
from fairshard.lightning._monitor import ShardingMonitor
from fairshard.lightning._names import FABRIC_REGISTRY, TRAINER_REGISTRY
from fairshard.lightning._offload import OffloadStrategy
from fairshard.lightning._slowmo import SlowMoStrategy
from fairshard.lightning._trainer import ShardedStrategy

__all__ = ["FabricShardedStrategy", "OffloadStrategy", "ShardedStrategy", "ShardingMonitor", "SlowMoStrategy"]

for _name, _method in (("ddp_sharded", "popen"), ("ddp_sharded_spawn", "spawn")):
    _about = f"fairshard's ShardedDataParallel and OSS, with `start_method` {_method!r}"
    TRAINER_REGISTRY.register(_name, ShardedStrategy, _about, start_method=_method)
    FABRIC_REGISTRY.register(_name, FabricShardedStrategy, _about, start_method=_method)
