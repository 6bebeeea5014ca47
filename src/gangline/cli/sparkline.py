"""Small curves of text: how a figure has gone over the last looks, in one cell of a table."""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence

BARS = "▁▂▃▄▅▆▇█"
LENGTH = 20
"""Looks that a curve shows."""
CURVE = "CPU(Lately)"
"""The head of a column of curves."""


def sparkline(values: Sequence[float]) -> str:
    """Return figures as bars: the highest is a full one, what is not above 0 an empty one."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return BARS[0] * len(values)
    steps = len(BARS) - 1
    return "".join(BARS[round(max(value, 0.0) / highest * steps)] for value in values)


class History:
    """The last figures of things, kept for as long as the things are there."""

    def __init__(self) -> None:
        self._seen: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=LENGTH))

    def note(self, figures: Mapping[Hashable, float]) -> None:
        """Take up how things are now; what is not among them is forgotten."""
        for gone in set(self._seen) - set(figures):
            del self._seen[gone]
        for key, figure in figures.items():
            self._seen[key].append(figure)

    def __bool__(self) -> bool:
        """Whether there is anything to show yet."""
        return any(len(values) > 1 for values in self._seen.values())

    def curve(self, key: Hashable) -> str:
        """Return the curve of one thing; empty while there is only one figure of it."""
        values = self._seen.get(key, ())
        return sparkline(list(values)) if len(values) > 1 else ""


NOTHING = History()
"""Of whoever looks once: nobody notes anything in it."""
