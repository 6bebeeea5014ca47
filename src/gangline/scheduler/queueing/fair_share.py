"""Fair shares of gangs and of namespaces within a queue.

The measure is the *dominant share* (DRF): the largest used fraction of any resource. The smallest
share is served first. A gang has no share before it starts, so shares of gangs order extra pods
only, and shares of namespaces order complete gangs.

A gang is charged only with usage of older gangs in its namespace. That usage shrinks as they
finish, so a large gang cannot be starved by younger small ones.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree, Vector, dominant_share
from gangline.scheduler.types.types import PodInfo, PodKey


@dataclass(frozen=True, slots=True)
class FairnessPolicy:
    """Which shares order the gangs of a queue."""

    gangs: bool = False
    """Order extra pods by the share of their gang."""
    namespaces: bool = False
    """Order gangs of one priority by the share of their namespace."""


ORDER_BY_AGE = FairnessPolicy()
"""The oldest gang comes first."""


_QueueNamespace: TypeAlias = tuple[str, str]
"""A queue and a namespace."""
_GangAge: TypeAlias = tuple[datetime, str]
"""Creation time and name of a gang."""
RESERVED_SHARE = -1.0
"""Share of a gang with a reservation: it comes first."""


class NamespaceShares:
    """The share of each namespace in each queue, as charged to a gang."""

    def __init__(self, state: SchedulerCache, tree: QueueTree) -> None:
        self._state, self._tree = state, tree
        self._given: dict[_QueueNamespace, Vector] = {}
        """Allocations of this cycle."""
        self._used: dict[_QueueNamespace, tuple[list[_GangAge], list[Vector]]] | None = None
        """Running gangs by age, with cumulative usage."""

    def lane_of(self, gang: PendingGang) -> str:
        """Return the namespace of a gang, or its own identity if it has a reservation.

        A reservation belongs to one gang, which need not be the first of its namespace.
        """
        return gang.id if gang.id in self._state.reservations else _namespace(gang.name)

    def share_of(self, gang: PendingGang) -> float:
        """Return the share charged to a gang; it only grows as the cycle allocates."""
        if gang.id in self._state.reservations:
            return RESERVED_SHARE
        if self._used is None:
            self._used = self._by_age()
        user_key = (gang.queue, _namespace(gang.name))
        total = self._given.get(user_key, np.zeros(len(self._tree.columns)))
        ages, sums = self._used.get(user_key, ([], []))
        if count := bisect_left(ages, (gang.created, gang.id)):
            total = total + sums[count - 1]
        return dominant_share(total, self._tree.total)

    def add_usage(self, gang: PendingGang, amount: Vector) -> None:
        """Add an allocation of this cycle."""
        user_key = (gang.queue, _namespace(gang.name))
        known = self._given.get(user_key)
        self._given[user_key] = amount if known is None else known + amount

    def _by_age(self) -> dict[_QueueNamespace, tuple[list[_GangAge], list[Vector]]]:
        running: dict[_QueueNamespace, list[tuple[_GangAge, Vector]]] = defaultdict(list)
        for name, pods in self._state.placed_members.items():
            found = self._gang_usage(name, next(iter(pods.values())))
            if found is not None:
                queue, created, amount = found
                running[queue, _namespace(name)].append(((created, name), amount))
        result = {}
        for user_key, users in running.items():
            users.sort(key=lambda user: user[0])
            sums = np.cumsum([amount for _, amount in users], axis=0)
            result[user_key] = ([age for age, _ in users], list(sums))
        return result

    def _gang_usage(self, name: str, pod: PodInfo) -> tuple[str, datetime, Vector] | None:
        """Return queue, age and usage of a running gang or pod; None: it is charged to no queue."""
        state = self._state
        queue = state.usage.queue_of(pod.group)
        if pod.group is None:
            amount = self._tree.request_vector(pod.shape.request)
            return (queue, pod.created, amount) if pod.is_ours else None
        group = state.groups.get(pod.group)
        used = state.usage.by_group.get(pod.group)
        if group is None or not used:
            return None
        return queue, group.created, self._tree.request_vector(tuple(sorted(used.items())))


def _namespace(name: str | PodKey) -> str:
    return name.partition("/")[0]
