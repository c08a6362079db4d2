"""Whether a series of samples grows, said so that noise, a jump and slow swings do not deceive.

Samples of a process's memory depend on those before them: an allocator keeps what it has got, a cache fills once. The
standard error of a fitted line takes them for independent, is far too small then, and finds a slope in any run. So a
series is cut into blocks, whose medians have little to do with one another, and the slope is the median of the slopes
of all pairs of blocks (Theil and Sen). Its error comes from ranks alone (Kendall), whatever the noise is like: as many
blocks must lie above earlier ones as chance brings about once in a thousand series. One jump or two are no trend
by that, however high, and three are.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS = 20
#: Deviations of a normal distribution beyond which there is one in a thousand.
DEVIATIONS = 3.29


@dataclass(frozen=True)
class Slope:
    """Growth of one unit of x, and what it may be as well."""

    middle: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return (self.high - self.low) / 2


def medians(samples: Sequence[float], blocks: int = BLOCKS) -> list[float]:
    """Of as many blocks, one after another and as even as they can be."""
    if len(samples) < blocks:
        raise ValueError(f"{len(samples)} samples are too few for {blocks} blocks: sample more often, or for longer")
    bounds = (round(number * len(samples) / blocks) for number in range(blocks + 1))
    return [statistics.median(samples[begin:end]) for begin, end in itertools.pairwise(bounds)]


def slope(values: Sequence[float], step: float) -> Slope:
    """The slope of values that are ``step`` apart."""
    count = len(values)
    slopes = sorted((values[b] - values[a]) / ((b - a) * step) for a in range(count) for b in range(a + 1, count))
    # Of Kendall's statistic, pairs that rise less pairs that fall, where nothing trends.
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    out = math.ceil((len(slopes) - DEVIATIONS * deviation) / 2) - 1
    if out < 0:
        raise ValueError(f"{count} blocks are too few to tell a trend from chance")
    return Slope(statistics.median(slopes), slopes[out], slopes[-1 - out])
