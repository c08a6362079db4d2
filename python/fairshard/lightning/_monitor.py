"""ShardingMonitor: what sharding costs, in Lightning's logs."""

from typing import Any

from fairshard._frameworks import Meter
from fairshard.lightning._names import Callback

__all__ = ["ShardingMonitor"]


class ShardingMonitor(Callback):
    """Logs for every batch how long rank 0 has waited for others, what it has sent, and an AdaScale's gain.

    The names are ``fairshard/waited_s``, ``fairshard/sent_bytes`` and ``fairshard/gain``.
    """

    def __init__(self) -> None:
        self._meter = Meter()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Counts from here on."""
        self._meter.take([])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Logs."""
        pl_module.log_dict(self._meter.take(trainer.optimizers))
