"""Whether goodput after a change is higher or lower than before, looked at after each segment.

Goodput is compared as its natural logarithm, one observation for each good segment. Looking again
and again at a fixed interval finds differences that do not exist; so the interval of the new mean
is valid for all numbers of segments at once (Robbins, "Statistical methods related to the law of
the iterated logarithm", Ann. Math. Stat. 41(5), 1970: the boundary of a normal mixture).
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from gangline.brain.guard.state import Baseline

PRIOR_SD = 0.05
"""Standard deviation of the logarithm of a segment's goodput, before a job shows its own."""
PRIOR_WEIGHT = 4
"""Observations that the prior counts for."""
_LEAST_SD = 0.01
ALPHA = 0.2
"""The intervals hold 80 %, as all ranges of the Brain."""
_Z = 1.2816
"""The 90th percentile of the standard normal distribution."""
_MIXTURE = 1.0
"""Segments at which the sequential interval is narrowest, relative to a fixed one."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """New goodput over old: the estimate and its range of 80 %, over all looks together."""

    low: float
    middle: float
    high: float
    segments: int
    """Segments after the change."""


def moments(logs: Sequence[float]) -> Baseline | None:
    """Summarise logarithms of goodput; None if there are none.

    From three on, those farther from the median than two robust deviations count as at two: one
    segment with a slow rank must not decide a trial.
    """
    if not logs:
        return None
    if len(logs) >= 3:
        middle = median(logs)
        limit = 2 * max(1.4826 * median(abs(log - middle) for log in logs), _LEAST_SD)
        logs = [min(max(log, middle - limit), middle + limit) for log in logs]
    mean = fmean(logs)
    return Baseline(mean=mean, count=len(logs), m2=sum((log - mean) ** 2 for log in logs))


def compare(before: Baseline | None, after: Baseline | None) -> Ratio | None:
    """Compare goodput before and after; None if one of them is not known."""
    if before is None or after is None:
        return None
    deviation = _deviation(before, after)
    difference = after.mean - before.mean
    radius = deviation * math.hypot(_Z / math.sqrt(before.count), sequential_radius(after.count))
    return Ratio(
        low=math.exp(difference - radius),
        middle=math.exp(difference),
        high=math.exp(difference + radius),
        segments=after.count,
    )


def lower_bound(goodput: Baseline) -> float:
    """The lower end of the range of the mean goodput, relative to that mean."""
    return math.exp(-_deviation(goodput) * _Z / math.sqrt(goodput.count))


def sequential_radius(count: int) -> float:
    """Half the width of the interval of a mean of ``count`` observations with variance 1."""
    total = count + _MIXTURE
    return math.sqrt(total * math.log(total / (_MIXTURE * ALPHA**2))) / count


def _deviation(*parts: Baseline) -> float:
    squares = PRIOR_WEIGHT * PRIOR_SD**2 + sum(part.m2 for part in parts)
    freedom = PRIOR_WEIGHT + sum(part.count - 1 for part in parts)
    return math.sqrt(squares / freedom)
