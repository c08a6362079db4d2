"""Data parallelism with gradients that are sharded over ranks."""

from fairshard.nn.data_parallel.sharded_ddp import ShardedDataParallel

__all__ = ["ShardedDataParallel"]
