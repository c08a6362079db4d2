"""Data parallelism with rare synchronisation between nodes."""

from fairshard.experimental.nn.data_parallel.slowmo_ddp import SlowMoBaseAlgorithm, SlowMoDistributedDataParallel

__all__ = ["SlowMoBaseAlgorithm", "SlowMoDistributedDataParallel"]
