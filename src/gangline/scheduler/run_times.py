"""How long gangs are likely to run, learned from those like them that have ended. Pure.

Gangs are of one *family* when their makers say so, or else when they have one kind of owner, one
queue, one size and names that differ in numbers only. An estimate is cautious: almost all have
ended sooner. It only ever decides who may use planned room meanwhile; who does so on an estimate
alone has to go if the estimate was wrong.
"""

import math
import re
from collections.abc import Iterable

REMEMBERED = 64
"""Runs of each family, the latest."""
FEWEST = 5
"""Of fewer runs nothing is concluded."""
QUANTILE = 0.95
MARGIN = 1.25
"""So much longer than almost all others took."""
MOST_FAMILIES = 10_000

_NUMBERED = re.compile(r"[-._]+[^-._]*\d[^-._]*$")
_GENERATED = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""What API servers append for ``generateName``."""


def family_of(namespace: str, name: str, *alike: object) -> str:
    """Name the family of a gang.

    Args:
        namespace: its namespace.
        name: its name; a generated ending, and numbered parts at the end, do not count.
        alike: what else its like have in common.
    """
    stem = _GENERATED.sub("", name)
    while (shorter := _NUMBERED.sub("", stem)) != stem and shorter:
        stem = shorter
    return "/".join(map(str, (namespace, stem, *alike)))


class RunTimes:
    """What is known of the families."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, float]] = {}
        """By family and gang, in the order of ending."""
        self._estimates: dict[str, float] = {}

    def estimate(self, family: str) -> float:
        """Return for how many seconds a gang runs at most, in all likelihood; nothing: unknown."""
        return self._estimates.get(family, 0.0)

    def ended(self, family: str, gang: str, seconds: float, *, whole: bool = True) -> None:
        """Note a run; of several pods of a gang the longest counts.

        Args:
            family: the gang's family; empty: it has none.
            gang: which gang, by its uid.
            seconds: how long it ran.
            whole: it came to its end; else it was cut off, and would have run for longer.
        """
        runs = self._runs.get(family, {})
        if not family or seconds <= runs.get(gang, 0.0):
            return
        if not whole and seconds <= max(runs.values(), default=0.0):
            return
        runs[gang] = seconds
        if len(runs) > REMEMBERED:
            del runs[next(iter(runs))]
        if family not in self._runs and len(self._runs) >= MOST_FAMILIES:
            oldest = next(iter(self._runs))
            del self._runs[oldest]
            self._estimates.pop(oldest, None)
        self._runs[family] = runs
        if len(runs) >= FEWEST:
            self._estimates[family] = MARGIN * _quantile(runs.values())


def _quantile(values: Iterable[float]) -> float:
    """The smallest value that no more than the rest of the quantile exceeds."""
    ordered = sorted(values)
    return ordered[math.ceil(QUANTILE * len(ordered)) - 1]
