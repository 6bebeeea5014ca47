"""Histograms of usage that forget: old samples lose half of their weight per half-life.

The buckets are those of Kubernetes' Vertical Pod Autoscaler: each is 5 % wider than the one before,
so that bucket n starts at ``first * (1.05^n - 1) / 0.05``. Weights are integers: a sample counts
``2^20 * weight * 2^f`` in the slot ``e`` of its bucket, where its time is ``e + f`` half-lives
after 1970. Sums of integers do not depend on their order, so advice does not either.

An empty histogram has no percentile: ``None``, never 0.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import NamedTuple

_GROWTH = 1.05
_SCALE = 1 << 20
_DAY_MS = 86_400_000


class HistogramKind(NamedTuple):
    """Bounds of the buckets, and how fast samples fade."""

    first: int
    """The end of the first bucket."""
    most: int
    """Values from here on share the last bucket."""
    half_life_ms: int


MEMORY = HistogramKind(10_000_000, 10**12, 14 * _DAY_MS)
"""Bytes. 14 days: a training runs once a day or a week, not all day long."""
CPU = HistogramKind(10, 1_000_000, 3 * _DAY_MS)
"""Millicores."""


@cache
def bucket_starts(kind: HistogramKind) -> tuple[int, ...]:
    """Return the first value of each bucket."""
    starts = [0]
    while starts[-1] < kind.most:
        starts.append(round(kind.first * (_GROWTH ** len(starts) - 1) / (_GROWTH - 1)))
    return tuple(starts)


@dataclass(slots=True)
class Histogram:
    """Weights by bucket and half-life; see the module."""

    kind: HistogramKind
    slots: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Integer weight by (bucket, half-lives since 1970)."""
    peak: int = 0
    """The largest value that was added."""

    def add(self, value: int, at_ms: int, weight: int = 1) -> None:
        """Add ``weight`` samples of a positive value that was measured at ``at_ms``.

        A value that is not known is no sample, and must not be added as 0.
        """
        bucket = bisect_right(bucket_starts(self.kind), value) - 1
        slot, rest_ms = divmod(at_ms, self.kind.half_life_ms)
        amount = weight * round(_SCALE * 2.0 ** (rest_ms / self.kind.half_life_ms))
        self.slots[bucket, slot] += amount
        self.peak = max(self.peak, value)

    def percentile(self, per_mille: int) -> int | None:
        """Return the end of the bucket that holds a percentile, at most ``peak``; None if empty."""
        if not self.slots:
            return None
        oldest = min(slot for _, slot in self.slots)
        weights: Counter[int] = Counter()
        for (bucket, slot), amount in self.slots.items():
            weights[bucket] += amount << (slot - oldest)
        buckets = sorted(weights)
        passed = list(accumulate(1000 * weights[bucket] for bucket in buckets))
        bucket = buckets[bisect_left(passed, per_mille * weights.total())]
        return min((*bucket_starts(self.kind), self.peak)[bucket + 1], self.peak)
