"""Tools that FairScale called experimental, at the places where it had them."""

from fairshard.experimental import nn

__all__ = ["nn"]
