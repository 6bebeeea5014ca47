"""Usage by gang and by queue, updated as pods and groups change."""

from collections import Counter, defaultdict
from heapq import nlargest

from gangline.scheduler.types.types import GroupKey, Request

MAX_CHARGED = 1000
"""Charged gangs above which cached results are dropped; nothing may ask for them again."""
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
        if group is None:
            for resource, amount in request:
                queue[resource] += sign * amount
            return
        if self._largest:
            self._record_charge(group)
        own = self.by_group[group]
        for resource, amount in request:
            queue[resource] += sign * amount
            own[resource] += sign * amount
        if not any(own.values()):
            del self.by_group[group]

    def _record_charge(self, group: GroupKey) -> None:
        self._charged.add(group)
        if len(self._charged) > MAX_CHARGED:
            self._largest.clear()
            self._charged.clear()

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
