"""Optimizers whose state is sharded over ranks."""

from fairshard.optim.oss import OSS

__all__ = ["OSS"]
