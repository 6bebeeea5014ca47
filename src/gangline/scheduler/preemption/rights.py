"""The rights of a gang to evict others: shares, guarantees and limits of queues, and budgets.

A gang may evict gangs of lower priority in its own queue. From another queue it may reclaim a
resource that this queue uses above its fair share, as long as its own queue stays within its own.
A claim is judged on the resources that are taken back, and of these on the first one that the other
queue uses above its fair share: devices before the rest, then by name. The claiming queue must be
within its fair share of this one and of those before it. The order is the same for all queues, so a
claim reduces what queues use above their fair shares in this order, and claims come to an end.
A resource that a queue deserves by name is not taken from it for a share by weight of another one.

Evictions that were decided but have not finished count as done. The reclaiming queue is charged for
the pods that will start, the other queue is credited with the pods that will end. Without this,
concurrent claims would each evict what only one of them is entitled to.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.scores import is_device
from gangline.scheduler.preemption.victims import EvictionUnit
from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree, Vector
from gangline.scheduler.types import DisruptionBudgetInfo, PodInfo, Request

TOLERANCE = 1 + 1e-9
"""Tolerance: shares are floating-point fractions."""


class ReclaimState:
    """What queues will use besides their usage, and what they are about to release."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self._expected: dict[str, tuple[str, Request]] = {}
        """Queue and request of each gang that will start, by its name."""
        self._leaving: dict[str, Counter[str]] = defaultdict(Counter)

    def add_expected(self, name: str, queue: str, asked: Request) -> None:
        """Charge a gang's queue for the resources that are being freed for it."""
        self._expected[name] = (queue, asked)

    def remove_expected(self, name: str) -> None:
        """Remove the charge: the gang has started, and its usage is known."""
        self._expected.pop(name, None)

    def add_leaving(self, queue: str, pod: PodInfo) -> None:
        """Count a pod as ended."""
        self._leaving[queue].update(dict(pod.shape.request))

    def outlook(self) -> tuple[dict[str, Vector], dict[str, Vector]]:
        """Return what each queue will use besides its usage, and what it will release."""
        zero = np.zeros(len(self.tree.columns))
        more, less = dict.fromkeys(self.tree.queues, zero), dict.fromkeys(self.tree.queues, zero)
        for own, request in self._expected.values():
            self._add(more, own, self.tree.request_vector(request))
        for own, amounts in self._leaving.items():
            self._add(less, own, self.tree.vector(amounts))
        return more, less

    def _add(self, change: dict[str, Vector], queue: str, amount: Vector) -> None:
        attributes = self.tree.queues.get(queue)
        for attributes_above in attributes.path() if attributes is not None else ():
            change[attributes_above.info.name] = change[attributes_above.info.name] + amount


@dataclass(slots=True)
class _Standing:
    """How the claiming queue stands to another queue."""

    path: tuple[QueueAttributes, ...]
    """The other queue and its ancestors below the common one."""
    owed: frozenset[int] = frozenset()
    """Columns that the gang asks for within the fair share of its queue and the other one owes."""
    borrowed: frozenset[int] = frozenset()
    """Columns that the gang asks for beyond the fair share of its queue."""
    named: frozenset[int] = frozenset()
    """Columns that one of the two queues deserves by name."""
    kept: frozenset[int] = frozenset()
    """Columns that the other queue deserves by name, and does not use above that."""


@dataclass(slots=True)
class EvictionTally:
    """What a set of eviction units takes from queues and budgets."""

    freed: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Amounts by queue and column."""
    largest: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The largest amount that one unit takes back, by queue and column."""
    disrupted: Counter[str] = field(default_factory=Counter)
    """Number of pods by budget."""
    spared: dict[str, tuple[PodInfo, ...]] = field(default_factory=dict)
    """Pods of gangs that only shrink, by the name of the gang."""

    def copy(self) -> "EvictionTally":
        return EvictionTally(
            self.freed.copy(), self.largest.copy(), self.disrupted.copy(), dict(self.spared)
        )


class EvictionRights:
    """What one gang may evict.

    Args:
        state: the usage of queues once everything decided so far has happened.
        asked: the request of the pods that the gang cannot start without.
        counts_expected: whether other queues are charged for gangs that are expected to start, too:
            so it is judged whether a gang could be evicted once it has started.
    """

    def __init__(
        self,
        state: ReclaimState,
        queue: str,
        asked: Vector,
        budgets: Mapping[str, DisruptionBudgetInfo],
        counts_expected: bool = False,
    ) -> None:
        self._tree = state.tree
        self._more, self._less = state.outlook()
        self._counts_expected = counts_expected
        self._queue, self._asked, self._budgets = queue, asked, budgets
        names = {column: name for name, column in self._tree.columns.items()}
        self._ranked = sorted(names, key=lambda c: (not is_device(names[c]), names[c]))
        """Columns in the order in which they decide."""
        self._asked_columns = _columns(asked > 0)
        self._standings: dict[str, _Standing | None] = {}
        self._totals: dict[EvictionUnit, Counter[int]] = {}
        self.excess = self._limit_excess()
        """What the limits of the queue and its ancestors lack, by queue and column."""

    def _limit_excess(self) -> dict[tuple[str, int], float]:
        excess: dict[tuple[str, int], float] = {}
        for attributes in self._tree.queues[self._queue].path():
            if not attributes.has_limit:
                continue
            name = attributes.info.name
            will_use = attributes.used + attributes.reserved + self._asked - self._less[name]
            for column in self._asked_columns:
                if will_use[column] > attributes.limit[column]:
                    excess[name, column] = float(will_use[column] - attributes.limit[column])
        return excess

    def may_reclaim(self) -> bool:
        """Return whether another queue owes something that the gang asks for."""
        standings = (self._standing(name) for name in self._tree.queues)
        return any(standing is not None and standing.owed for standing in standings)

    def may_ever_take(self, unit: EvictionUnit) -> bool:
        """Return whether a unit may be evicted for some claim of the gang."""
        if any(self._disrupted(unit)[key] > b.allowed for key, b in self._budgets.items()):
            return False
        if unit.gang.queue == self._queue:
            return True
        standing = self._standing(unit.gang.queue)
        return standing is not None and bool(standing.owed)

    def decisive_column(self, unit: EvictionUnit) -> int | None:
        """Return the column that entitles the gang to a unit of another queue; None: none does."""
        standing = self._standing(unit.gang.queue)
        if standing is None:
            return None
        taken = self._total(unit)
        for column in self._ranked:
            if column not in taken:
                continue
            if column in standing.borrowed:
                return None
            if column in standing.owed:
                keeps = column not in standing.named and not standing.kept.isdisjoint(taken)
                return None if keeps else column
        return None

    def add(self, tally: EvictionTally, unit: EvictionUnit) -> bool:
        """Add a unit to the tally; return False if the gang may not evict it as well.

        The tally is changed in any case: a caller that only asks passes a copy.
        """
        if self._budgets:
            tally.disrupted += self._disrupted(unit)
            if any(tally.disrupted[key] > b.allowed for key, b in self._budgets.items()):
                return False
        if not unit.breaks_gang:
            name = unit.gang.id
            spared = (*tally.spared.get(name, ()), *unit.pods)
            if not unit.gang.can_spare(spared):
                return False
            tally.spared[name] = spared
        amounts = self._total(unit)
        path: Iterable[QueueAttributes] = ()
        if unit.gang.queue == self._queue:
            if self.excess:
                path = self._tree.queues[self._queue].path()
        else:
            column = self.decisive_column(unit)
            standing = self._standing(unit.gang.queue)
            if column is None or standing is None:
                return False
            path = self._tree.queues[unit.gang.queue].path()
            for attributes in standing.path:
                key = (attributes.info.name, column)
                tally.largest[key] = max(tally.largest[key], amounts[column])
        for attributes in path:
            for column, amount in amounts.items():
                tally.freed[attributes.info.name, column] += amount
        # Both conditions are about all units together, so the order of adding does not matter.
        return self._are_owed(tally) and self._guarantees_hold(unit, tally)

    def covers_limits(self, tally: EvictionTally) -> bool:
        """Return whether the limits of the gang's queue allow it once the units are evicted."""
        return all(tally.freed[key] >= amount for key, amount in self.excess.items())

    def could_cover_limits(self, units: Iterable[EvictionUnit]) -> bool:
        freed: Counter[tuple[str, int]] = Counter()
        for unit in units:
            queue = self._tree.queues.get(unit.gang.queue)
            for attributes in queue.path() if queue is not None else ():
                for column, amount in self._total(unit).items():
                    freed[attributes.info.name, column] += amount
        return all(freed[key] >= amount for key, amount in self.excess.items())

    def eases_limit(self, unit: EvictionUnit, tally: EvictionTally) -> bool:
        """Return whether a unit frees what the limits lack besides the tally."""
        queue = self._tree.queues.get(unit.gang.queue)
        names = (
            {attributes.info.name for attributes in queue.path()} if queue is not None else set()
        )
        amounts = self._total(unit)
        return any(
            name in names and amounts[column] > 0 and tally.freed[name, column] < amount
            for (name, column), amount in self.excess.items()
        )

    def _are_owed(self, tally: EvictionTally) -> bool:
        """Return whether each queue exceeds its fair share until the last, largest unit ends."""
        for (name, column), largest in tally.largest.items():
            attributes = self._tree.queues[name]
            before_last = self._remaining(attributes)[column]
            before_last -= tally.freed[name, column] - largest
            if not before_last > attributes.fair_share[column] * TOLERANCE:
                return False
        return True

    def _remaining(self, queue: QueueAttributes) -> Vector:
        """Return what another queue uses once its terminating pods have ended."""
        remaining = queue.used - self._less[queue.info.name]
        return remaining + self._more[queue.info.name] if self._counts_expected else remaining

    def _guarantees_hold(self, unit: EvictionUnit, tally: EvictionTally) -> bool:
        if unit.gang.queue == self._queue:
            return True
        standing = self._standing(unit.gang.queue)
        for attributes in standing.path if standing is not None else ():
            name = attributes.info.name
            guarantee = self._tree.structure.guarantees[name]
            for column in np.flatnonzero(guarantee > 0).tolist():
                freed = tally.freed[name, column]
                left = self._remaining(attributes)[column] - freed
                if freed and left < guarantee[column]:
                    return False
        return True

    def _standing(self, other: str) -> _Standing | None:
        """Return how the queue stands to another one; None: it may reclaim nothing from it."""
        if other not in self._standings:
            self._standings[other] = self._compared_with(other)
        return self._standings[other]

    def _compared_with(self, other: str) -> _Standing | None:
        if other not in self._tree.queues or other == self._queue:
            return None
        own_path, path = self._tree.diverging_paths(self._queue, other)
        # Usage of the root itself, where no job belongs, is never reclaimed.
        if not path or not all(attributes.info.reclaimable for attributes in path):
            return None
        within = np.ones(len(self._asked), dtype=bool)
        for attributes in own_path:
            # Its own terminating pods count until they have ended.
            will_use = attributes.used + self._more[attributes.info.name] + self._asked
            within &= will_use <= attributes.fair_share * TOLERANCE
        over = np.ones(len(self._asked), dtype=bool)
        for attributes in path:
            # Every queue below the common ancestor must exceed its fair share of the same resource:
            # a queue within its share pays for no sibling. Pods that are expected to start count
            # once they have started.
            over &= self._remaining(attributes) > attributes.fair_share * TOLERANCE
        stated = self._tree.structure.states_deserved
        theirs = np.any([stated[attributes.info.name] for attributes in path], axis=0)
        named = np.any([theirs, *(stated[attributes.info.name] for attributes in own_path)], axis=0)
        asked = self._asked > 0
        return _Standing(
            tuple(path),
            _columns(asked & within & over),
            _columns(asked & ~within),
            _columns(named),
            _columns(theirs & ~over),
        )

    def _total(self, unit: EvictionUnit) -> Counter[int]:
        total = self._totals.get(unit)
        if total is None:
            total = self._totals[unit] = Counter()
            for pod in unit.pods:
                for name, amount in pod.shape.request:
                    column = self._tree.columns.get(name)
                    if column is not None and amount:
                        total[column] += amount
        return total

    def _disrupted(self, unit: EvictionUnit) -> Counter[str]:
        return Counter(
            key for pod in unit.pods for key, budget in self._budgets.items() if budget.covers(pod)
        )


def _columns(mask: NDArray[np.bool_]) -> frozenset[int]:
    return frozenset(np.flatnonzero(mask).tolist())
