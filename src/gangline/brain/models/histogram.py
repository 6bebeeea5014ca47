"""Histograms of usage that forget: old samples lose half of their weight per half-life.

The buckets are those of Kubernetes' Vertical Pod Autoscaler: each is 5 % wider than the one before,
so that bucket n starts at ``first * (1.05^n - 1) / 0.05``. Weights are integers: a sample counts
``2^20 * weight * 2^f`` in the slot ``e`` of its bucket, where its time is ``e + f`` half-lives
after 1970. Sums of integers do not depend on their order, so histograms merged in any order equal
bit for bit, and a histogram that is rebuilt from its samples equals the one that was kept.

An empty histogram has no percentile: ``None``, never 0.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

_GROWTH = 1.05
_SCALE = 1 << 20
_SLOTS = 20
"""Slots older than this many half-lives are dropped: a millionth of the weight of a new sample."""
_DAY_MS = 86_400_000
_FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class HistogramKind:
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
    slots: dict[tuple[int, int], int] = field(default_factory=dict)
    """Integer weight by (bucket, half-lives since 1970)."""
    peak: int = 0
    """The largest value that was added."""
    first_ms: int | None = None
    last_ms: int | None = None
    count: int = 0

    def add(self, value: int, at_ms: int, weight: int = 1) -> None:
        """Add a sample.

        Args:
            value: bytes or millicores.
            at_ms: when it was measured, milliseconds since 1970.
            weight: how many samples of this value.

        Raises:
            ValueError: the value or the weight is not positive. A value that is not known is no
                sample, and must not be added as 0.
        """
        if value <= 0 or weight <= 0 or at_ms < 0:
            raise ValueError(f"value {value}, weight {weight} and time {at_ms} must be positive")
        bucket = bisect_right(bucket_starts(self.kind), value) - 1
        slot, rest_ms = divmod(at_ms, self.kind.half_life_ms)
        amount = weight * round(_SCALE * 2.0 ** (rest_ms / self.kind.half_life_ms))
        self.slots[bucket, slot] = self.slots.get((bucket, slot), 0) + amount
        self._extend(value, at_ms, at_ms, weight)

    def merge(self, other: "Histogram") -> None:
        """Add all samples of another histogram of the same kind."""
        if other.kind != self.kind:
            raise ValueError("histograms of different kinds cannot be merged")
        if other.first_ms is None or other.last_ms is None:
            return
        for key, amount in other.slots.items():
            self.slots[key] = self.slots.get(key, 0) + amount
        self._extend(other.peak, other.first_ms, other.last_ms, other.count)

    def percentile(self, per_mille: int) -> int | None:
        """Return the end of the bucket that holds a percentile, at most ``peak``; None if empty.

        Args:
            per_mille: 500 for the median, 980 for the 98th percentile.
        """
        if not self.slots:
            return None
        weights = self._weights()
        needed = per_mille * sum(weights.values())
        passed = 0
        starts = bucket_starts(self.kind)
        for bucket in sorted(weights):
            passed += 1000 * weights[bucket]
            if passed >= needed:
                end = starts[bucket + 1] if bucket + 1 < len(starts) else self.peak
                return min(end, self.peak)
        return self.peak

    def encode(self) -> bytes:
        """Return the buckets in a compact form; equal histograms give equal bytes."""
        numbers = [_FORMAT, len(self.slots)]
        before = 0
        for bucket, slot in sorted(self.slots):
            numbers += [bucket - before, slot, self.slots[bucket, slot]]
            before = bucket
        return zlib.compress(b"".join(map(_encode_number, numbers)))

    @classmethod
    def decode(
        cls, kind: HistogramKind, text: bytes, *, peak: int, first_ms: int, last_ms: int, count: int
    ) -> "Histogram":
        """Restore a histogram from ``encode`` and the values that are stored beside it.

        Raises:
            ValueError: the bytes are none of ``encode``, or of a later format.
        """
        try:
            numbers = _decode_numbers(zlib.decompress(text))
            if (version := next(numbers)) != _FORMAT:
                raise ValueError(f"format {version} of a histogram; {_FORMAT} is known")
            slots, bucket = {}, 0
            for _ in range(next(numbers)):
                bucket += next(numbers)
                slot = next(numbers)
                slots[bucket, slot] = next(numbers)
        except (zlib.error, StopIteration) as error:
            raise ValueError("these bytes are no histogram") from error
        if not slots:
            return cls(kind)
        return cls(kind, slots, peak, first_ms, last_ms, count)

    def _weights(self) -> dict[int, int]:
        oldest = min(slot for _, slot in self.slots)
        weights: dict[int, int] = {}
        for (bucket, slot), amount in self.slots.items():
            weights[bucket] = weights.get(bucket, 0) + (amount << (slot - oldest))
        return weights

    def _extend(self, value: int, first_ms: int, last_ms: int, count: int) -> None:
        self.peak = max(self.peak, value)
        self.count += count
        half_life = self.kind.half_life_ms
        before = self.last_ms
        if self.first_ms is None or first_ms < self.first_ms:
            self.first_ms = first_ms
        if before is None or last_ms > before:
            self.last_ms = before = last_ms
        elif first_ms // half_life >= before // half_life - _SLOTS:
            return  # the newest sample is as before, and nothing older than it allows was added
        # What is dropped depends on the newest sample only, hence not on the order of merging.
        oldest = before // half_life - _SLOTS
        if any(slot < oldest for _, slot in self.slots):
            self.slots = {key: w for key, w in self.slots.items() if key[1] >= oldest}


def _encode_number(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _decode_numbers(encoded: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in encoded:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
