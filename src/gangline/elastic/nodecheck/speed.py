"""Slow nodes: compared with the other nodes, with earlier checks, and with an absolute limit.

Each node is compared with the median of the *others*, so that one of two nodes can be slow. Times
of earlier checks of any node count among the others. So a job of one node, or one whose nodes are
all slow today, still has a comparison.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline.elastic.nodecheck.result import COLLECTIVE, COMPUTE, NodeFinding

NodeTimes = tuple[float, float]
"""Seconds of the matrix product and of the collective."""

TimesHistory = Mapping[int, Sequence[NodeTimes]]
"""Times of earlier checks with the same sizes, by node."""

_TESTS = (COMPUTE, COLLECTIVE)


@dataclass(frozen=True, slots=True)
class SpeedLimits:
    """When a node is a straggler."""

    ratio: float = 2.0
    """Multiple of the median of the others ..."""
    excess_s: float = 0.02
    """... and difference to that median that a straggler exceeds; less is noise."""
    absolute_s: float = 0.0
    """Time of either test that a node must not exceed; 0 for no limit."""


def find_slow_nodes(
    times: Mapping[int, NodeTimes], limits: SpeedLimits, history: TimesHistory
) -> dict[int, NodeFinding]:
    findings: dict[int, NodeFinding] = {}
    for index, test in enumerate(_TESTS):
        known = [seconds[index] for seconds in times.values()]
        known += [seconds[index] for past in history.values() for seconds in past]
        known.sort()
        for node, own in times.items():
            middle = _median_of_others(known, own[index])
            threshold = _threshold(middle, limits)
            if own[index] > threshold and node not in findings:
                findings[node] = NodeFinding(
                    node,
                    test,
                    value=own[index],
                    threshold=threshold,
                    message="slower than the limit" if middle is None else "slower than the others",
                )
    return findings


def _median_of_others(known: Sequence[float], own: float) -> float | None:
    """Return the median of sorted times without ``own``, which is one of them."""
    count = len(known) - 1
    if not count:
        return None
    place = bisect_left(known, own)
    low, high = ((count - 1) // 2, count // 2)
    return sum(known[i + (i >= place)] for i in (low, high)) / 2


def _threshold(middle: float | None, limits: SpeedLimits) -> float:
    bounds = [limits.absolute_s] if limits.absolute_s else []
    if middle is not None:
        bounds.append(max(middle * limits.ratio, middle + limits.excess_s))
    return min(bounds, default=float("inf"))
