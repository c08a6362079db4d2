"""Models that are paged through a device, and data parallelism with rare synchronisation."""

from fairshard.experimental.nn import data_parallel
from fairshard.experimental.nn.offload import OffloadModel

__all__ = ["OffloadModel", "data_parallel"]
