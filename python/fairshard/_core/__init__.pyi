# Made by scripts/stubs.
"""
fairshard's C++ core
"""
from __future__ import annotations
from . import comm
from . import outer
from . import page
from . import parts
from . import scale
from . import shard
from . import store
__all__: list[str] = ['comm', 'outer', 'page', 'parts', 'scale', 'shard', 'store', 'torch_version']
torch_version: str
