"""Wrappers of modules."""

from fairshard.nn.data_parallel import ShardedDataParallel

__all__ = ["ShardedDataParallel"]
