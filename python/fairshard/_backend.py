"""Makes ``torch.distributed.init_process_group("fairshard")`` work, and ``"cpu:fairshard,cuda:nccl"``."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def register() -> None:
    """Makes the backend known to torch.distributed, once."""
    if dist.is_available() and "FAIRSHARD" not in dist.Backend._plugins:
        dist.Backend.register_backend("fairshard", _make, devices=["cpu"])


def _make(store: "dist.Store", rank: int, size: int, timeout: timedelta) -> Any:
    from fairshard._core.comm import make_backend

    return make_backend(store, rank, size, timeout.total_seconds())
