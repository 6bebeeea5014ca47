"""Usage by gang and by queue, updated as pods and groups change."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import nlargest

from gangline.scheduler.types.types import GroupKey, Request

NO_QUEUE = ""
"""The queue of gangs whose group does not exist."""


class UsageLedger:
    """Requested amounts charged to gangs, and through them to queues."""

    def __init__(self, single_pod_queue: str) -> None:
        self.by_group: dict[GroupKey, Counter[str]] = defaultdict(Counter)
        self.by_queue: dict[str, Counter[str]] = defaultdict(Counter)
        self._queue_of: dict[GroupKey, str] = {}
        self._single_pod_queue = single_pod_queue
        """Queue that pods without a group are charged to."""
        self._largest: dict[tuple[str, int], list[tuple[int, GroupKey]]] = {}
        """Cached results of ``largest``, in descending order."""
        self._charged: set[GroupKey] = set()
        """Gangs that were charged since these results were computed."""

    def charge(self, group: GroupKey | None, request: Request, sign: int = 1) -> None:
        """Add a pod's request (``sign`` -1: subtract it)."""
        queue = self.by_queue[self.queue_of(group)]
        for resource, amount in request:
            queue[resource] += sign * amount
        if group is None:
            return
        self._charged.add(group)
        own = self.by_group[group]
        for resource, amount in request:
            own[resource] += sign * amount
        if not any(own.values()):
            del self.by_group[group]

    def largest(self, resource: str, count: int) -> list[tuple[GroupKey, int]]:
        """Return the gangs with the largest usage of a resource; ties go to the last name."""
        if self._charged:
            # All gangs are scanned only if one of the largest has shrunk.
            for key, known in list(self._largest.items()):
                self._largest[key] = self._updated(*key, known)
                if not self._largest[key]:
                    del self._largest[key]
            self._charged.clear()
        ranked = self._largest.get((resource, count))
        if ranked is None:
            everybody = ((used[resource], group) for group, used in self.by_group.items())
            ranked = self._largest[resource, count] = nlargest(count, everybody)
        return [(group, amount) for amount, group in ranked]

    def _updated(
        self, resource: str, count: int, known: list[tuple[int, GroupKey]]
    ) -> list[tuple[int, GroupKey]]:
        """Return the updated result; empty if the cached one does not determine it."""
        kept = [entry for entry in known if entry[1] not in self._charged]
        charged = [(self.by_group[g][resource], g) for g in self._charged if g in self.by_group]
        ranked = nlargest(count, [*kept, *charged])
        if len(known) < count:
            # The cached result had all gangs.
            return ranked
        # A gang that is neither cached nor charged is smaller than the last cached one.
        return ranked if len(ranked) == count and ranked[-1] >= known[-1] else []

    def queue_of(self, group: GroupKey | None) -> str:
        """Return the queue that a gang is charged to."""
        return self._single_pod_queue if group is None else self._queue_of.get(group, NO_QUEUE)

    def assign(self, group: GroupKey, queue: str) -> None:
        """Charge a gang to a queue, including its earlier usage."""
        former = self.queue_of(group)
        if former == queue:
            return
        self._queue_of[group] = queue
        own = self.by_group.get(group, Counter())
        self.by_queue[former].subtract(own)
        self.by_queue[queue].update(own)

    def release(self, group: GroupKey) -> None:
        """Charge a gang to no queue any more: its group was deleted."""
        self.assign(group, NO_QUEUE)
        self._queue_of.pop(group, None)


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
