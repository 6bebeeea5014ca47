"""Sparklines: the recent values of a figure in one cell of a table."""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence

BARS = "▁▂▃▄▅▆▇█"
LENGTH = 20
"""Number of values in a sparkline."""
CPU_COLUMN = "CPU(Lately)"
"""Header of the column."""


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars; the highest value is a full bar, values up to 0 are the lowest bar."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return BARS[0] * len(values)
    steps = len(BARS) - 1
    return "".join(BARS[round(max(value, 0.0) / highest * steps)] for value in values)


class SparklineHistory:
    """Recent values by key; keys that are not reported any more are dropped."""

    def __init__(self) -> None:
        self._values: defaultdict[Hashable, deque[float]] = defaultdict(
            lambda: deque(maxlen=LENGTH)
        )

    def record(self, figures: Mapping[Hashable, float]) -> None:
        """Record the current values, and drop keys that are not among them."""
        for key in set(self._values) - set(figures):
            del self._values[key]
        for key, figure in figures.items():
            self._values[key].append(figure)

    def __bool__(self) -> bool:
        """True if some key has more than one value."""
        return any(len(values) > 1 for values in self._values.values())

    def render(self, key: Hashable) -> str:
        """Return the sparkline of one key; empty while it has only one value."""
        values = self._values.get(key, ())
        return sparkline(list(values)) if len(values) > 1 else ""


NO_HISTORY = SparklineHistory()
"""The history of a command that prints once: it stays empty."""
