"""Shares of gangs and of namespaces, for queues whose order of service goes by them. Pure.

The measure is the *dominant share* (DRF): of the resource of which somebody uses the largest part,
that part of what there is. Who has the smallest is next. A gang as such has none before it starts,
so between gangs shares only decide on pods beyond a minimum; between namespaces they decide on
whole gangs.

What counts against a gang is what gangs of its namespace use that came before it, not after: those
end some time, and then nothing stands against it, however many small ones may have passed it.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np

from gangline.scheduler.model import PodFacts, PodKey
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.shares import Vector, dominant_share
from gangline.scheduler.state import ClusterState
from gangline.scheduler.units import Unit


@dataclass(frozen=True, slots=True)
class Fairness:
    """Whose shares the order within a queue goes by."""

    gangs: bool = False
    """For pods beyond a minimum: what a gang uses already counts from the start."""
    namespaces: bool = False
    """For whole gangs of one priority."""


BY_AGE = Fairness()
"""Who came first goes first."""


_Account: TypeAlias = tuple[str, str]
"""A queue and a namespace."""
_Age: TypeAlias = tuple[datetime, str]
"""When a gang came, and its name."""
FIRST = -1.0
"""Stands for the share of who has been promised room: it keeps its turn."""


class NamespaceShares:
    """How large a part of the cluster each namespace uses through each queue, as a unit sees it."""

    def __init__(self, state: ClusterState, tree: QueueTree) -> None:
        self._state, self._tree = state, tree
        self._given: dict[_Account, Vector] = {}
        """What the decision has given to namespaces so far."""
        self._used: dict[_Account, tuple[list[_Age], list[Vector]]] | None = None
        """Who runs, by age, and what each uses together with those before it."""

    def lane(self, unit: Unit) -> str:
        """Return in whose name a unit waits: its namespace's, or its own where it is promised room.

        A promise is made to one unit, which may not be the first of its namespace.
        """
        return unit.name if unit.name in self._state.promises else _namespace(unit.name)

    def of(self, unit: Unit) -> float:
        """Return the share that counts against a unit; it only grows as more is given."""
        if unit.name in self._state.promises:
            return FIRST
        if self._used is None:
            self._used = self._by_age()
        account = (unit.queue, _namespace(unit.name))
        total = self._given.get(account, np.zeros(len(self._tree.columns)))
        ages, sums = self._used.get(account, ([], []))
        if count := bisect_left(ages, (unit.created, unit.name)):
            total = total + sums[count - 1]
        return dominant_share(total, self._tree.total)

    def give(self, unit: Unit, amount: Vector) -> None:
        """Count what the decision gives to a unit."""
        account = (unit.queue, _namespace(unit.name))
        known = self._given.get(account)
        self._given[account] = amount if known is None else known + amount

    def _by_age(self) -> dict[_Account, tuple[list[_Age], list[Vector]]]:
        running: dict[_Account, list[tuple[_Age, Vector]]] = defaultdict(list)
        for name, pods in self._state.placed_members.items():
            found = self._user(name, next(iter(pods.values())))
            if found is not None:
                queue, created, amount = found
                running[queue, _namespace(name)].append(((created, name), amount))
        result = {}
        for account, users in running.items():
            users.sort(key=lambda user: user[0])
            sums = np.cumsum([amount for _, amount in users], axis=0)
            result[account] = ([age for age, _ in users], list(sums))
        return result

    def _user(self, name: str, pod: PodFacts) -> tuple[str, datetime, Vector] | None:
        """Return queue, age and use of a gang or pod that runs; None: nobody counts it."""
        state = self._state
        queue = state.running.queue_of(pod.group)
        if pod.group is None:
            amount = self._tree.amount(pod.shape.request)
            return (queue, pod.created, amount) if pod.ours else None
        group = state.groups.get(pod.group)
        used = state.running.by_group.get(pod.group)
        if group is None or not used:
            return None
        return queue, group.created, self._tree.amount(tuple(sorted(used.items())))


def _namespace(name: str | PodKey) -> str:
    return name.partition("/")[0]
