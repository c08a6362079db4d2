"""Training that does not fit: sharded, paged and rarely synchronised, on one C++ core."""

from fairshard._backend import register as _register_backend
from fairshard._versions import check_torch as _check_torch

__version__ = "0.1.0"

_check_torch()
_register_backend()

# After the check: they load the core, which an unsuitable torch would break with an obscure error.
from fairshard import checkpoint, comm, experimental, nn, optim  # noqa: E402

__all__ = ["checkpoint", "comm", "experimental", "nn", "optim"]
