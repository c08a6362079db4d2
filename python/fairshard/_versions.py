"""The torch that is here must be the one that the extension was built with."""

import torch

OLDEST_TORCH = (2, 11)


def check_torch(found: str = torch.__version__, built: str | None = None) -> None:
    """Raises ImportError if this torch is too old, or another one than at build time.

    LibTorch promises no stable C++ ABI between minor versions, and a mismatch shows itself as an
    undefined symbol or worse.
    """
    number = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    if number < OLDEST_TORCH:
        raise ImportError(f"fairshard needs torch 2.11 or newer, but torch {found} is installed")
    if built is None:
        try:
            from fairshard._core import torch_version as built
        except ImportError as error:
            raise ImportError(
                f"fairshard's extension does not load with torch {found}: was it built with another torch? ({error})"
            ) from error
    if tuple(int(part) for part in built.split(".")[:2]) != number:
        raise ImportError(f"fairshard was built with torch {built}, but torch {found} is installed: build it again")
