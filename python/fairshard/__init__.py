"""Training that does not fit: sharded, paged and rarely synchronised, on one C++ core."""

from pathlib import Path as _Path

from fairshard._backend import register as _register_backend
from fairshard._built import find_built as _find_built
from fairshard._versions import check_torch as _check_torch

__version__ = "0.1.0"

__path__.append(str(_find_built(_Path(__file__).parent)))  # fairshard._core is looked for there, too
_check_torch()
_register_backend()

# After the check: they load the core, which an unsuitable torch would break with an obscure error.
from fairshard import checkpoint, comm, experimental, nn, optim  # noqa: E402

__all__ = ["checkpoint", "comm", "experimental", "nn", "optim"]
