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

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.plugins.scores import is_device
from gangline.scheduler.preemption.victims import EvictionUnit
from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree, Vector
from gangline.scheduler.types import DisruptionBudgetInfo, PodInfo, Request


class QueueRows:
    """The queues of a tree as rows of matrices: the root first, parents before their children."""

    def __init__(self, tree: QueueTree) -> None:
        level, self.queues = [tree.root], [tree.root]
        self.levels: list[slice] = []
        """Rows of each level below the root."""
        while level := [child for queue in level for child in queue.children]:
            self.levels.append(slice(len(self.queues), len(self.queues) + len(level)))
            self.queues += level
        self.row = {queue.info.name: row for row, queue in enumerate(self.queues)}
        above = [queue.parent.info.name if queue.parent else ROOT_QUEUE for queue in self.queues]
        self.parents = np.array([self.row[name] for name in above])
        self.reclaimable = np.array([queue.info.reclaimable for queue in self.queues])
        nothing = np.zeros(len(tree.columns), dtype=bool)
        stated = tree.structure.states_deserved
        self.stated = np.array([stated.get(queue.info.name, nothing) for queue in self.queues])
        """Which resources the deserved amount of each queue names."""
        # The root is above all: it never decides.
        self.reclaimable[0], self.stated[0] = True, False


class ReclaimState:
    """What queues will use besides their usage, and what they are about to release."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.more: dict[str, Vector] = {}
        """What each queue will use besides its usage; without queues that use nothing more."""
        self.less: dict[str, Vector] = {}
        """What each queue will release."""
        self._expected: dict[str, tuple[str, Vector]] = {}
        """Queue and request of each gang that will start, by its name."""
        self._changed: list[str] = list(tree.queues)
        """Queues whose amounts have changed since the last comparison."""
        self._charged = 0
        """Number of changes of the tree's usage that were taken over."""
        self._comparisons: dict[tuple[str, bytes, bool], QueueComparison] = {}
        self._above_anywhere: dict[bool, NDArray[np.bool_]] = {}
        """Whether any queue is above its fair share, without and with expected gangs."""

    @cached_property
    def rows(self) -> QueueRows:
        return QueueRows(self.tree)

    @cached_property
    def ranked_columns(self) -> list[int]:
        """Columns in the order in which they decide."""
        names = {column: name for name, column in self.tree.columns.items()}
        return sorted(names, key=lambda c: (not is_device(names[c]), names[c]))

    def add_expected(self, name: str, queue: str, asked: Request) -> None:
        """Charge a gang's queue for the resources that are being freed for it."""
        self.remove_expected(name)
        self._expected[name] = (queue, self.tree.request_vector(asked))
        self._add(self.more, *self._expected[name])

    def remove_expected(self, name: str) -> None:
        """Remove the charge: the gang has started, and its usage is known."""
        expected = self._expected.pop(name, None)
        if expected is not None:
            self._add(self.more, expected[0], -expected[1])

    def add_leaving(self, queue: str, pod: PodInfo) -> None:
        """Count a pod as ended."""
        self._add(self.less, queue, self.tree.request_vector(pod.shape.request))

    def remaining(self, queue: QueueAttributes, counts_expected: bool) -> Vector:
        """Return what a queue uses once its terminating pods have ended.

        Args:
            counts_expected: whether gangs count that are expected to start.
        """
        name, remaining = queue.info.name, queue.used
        if name in self.less:
            remaining = remaining - self.less[name]
        return remaining + self.more[name] if counts_expected and name in self.more else remaining

    def comparison(self, queue: str, asked: Vector, counts_expected: bool) -> "QueueComparison":
        """Return how a queue stands to all others; it is computed again after changes only."""
        self._update()
        key = (queue, asked.tobytes(), counts_expected)
        compared = self._comparisons.get(key)
        if compared is None:
            above = self._above[counts_expected]
            anywhere = self._above_anywhere[counts_expected]
            compared = QueueComparison(self, queue, asked, above, anywhere)
            self._comparisons[key] = compared
        return compared

    @cached_property
    def _above(self) -> dict[bool, NDArray[np.bool_]]:
        """Whether each queue is above its fair share, without and with expected gangs."""
        shape = self.rows.stated.shape
        return {expects: np.zeros(shape, dtype=bool) for expects in (False, True)}

    def _update(self) -> None:
        charges = self.tree.usage_changes
        if not self._changed and len(charges) == self._charged:
            return
        for name in charges[self._charged :]:
            self._mark_changed(name)
        self._charged = len(charges)
        self._comparisons.clear()
        for name in dict.fromkeys(self._changed):
            queue, row = self.tree.queues[name], self.rows.row[name]
            share = queue.tolerated_share
            for expects, above in self._above.items():
                above[row] = self.remaining(queue, expects) > share
        for expects, above in self._above.items():
            self._above_anywhere[expects] = np.logical_or.reduce(above)
        self._changed.clear()

    def _mark_changed(self, queue: str) -> None:
        self._changed += [attributes.info.name for attributes in self.tree.queues[queue].path()]

    def _add(self, change: dict[str, Vector], queue: str, amount: Vector) -> None:
        if queue not in self.tree.queues:
            return
        self._mark_changed(queue)
        for attributes in self.tree.queues[queue].path():
            name = attributes.info.name
            change[name] = change[name] + amount if name in change else amount


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """How the claiming queue stands to another queue that owes it something."""

    path: tuple[QueueAttributes, ...]
    """The other queue and its ancestors below the common one."""
    owed: frozenset[int]
    """Columns that the gang asks for within the fair share of its queue and the other one owes."""
    borrowed: frozenset[int]
    """Columns that the gang asks for beyond the fair share of its queue."""
    named: frozenset[int]
    """Columns that one of the two queues deserves by name."""
    kept: frozenset[int]
    """Columns that the other queue deserves by name, and does not use above that."""


class QueueComparison:
    """How a queue stands to all others with one request: for all of them at the same time.

    Both queues are compared below their common ancestor. Every queue on the other one's path must
    exceed its fair share of the same resource: a queue within its share pays for no sibling. Every
    queue on the own path must stay within its fair share; its own terminating pods count until
    they have ended. A walk down the levels of the tree adds each parent to its children, where
    the own queue and its ancestors count as neutral: so it begins below the common ancestor.

    Args:
        above: whether each queue is above its fair share, by row and column.
        is_above_anywhere: whether any queue is, by column.
    """

    def __init__(
        self,
        state: ReclaimState,
        queue: str,
        asked: Vector,
        above: NDArray[np.bool_],
        is_above_anywhere: NDArray[np.bool_],
    ) -> None:
        self._rows, self._asked = state.rows, asked > 0
        path = list(state.tree.queues[queue].path())
        self.owing: dict[str, int] = {}
        """Rows of the queues that owe something that is asked for, by name."""
        self._standings: dict[str, QueueStanding | None] = {}
        wanted = self._asked & is_above_anywhere
        if not np.count_nonzero(wanted):
            return
        within = [np.ones(len(asked), dtype=bool)]
        for attributes in path:
            more = state.more.get(attributes.info.name)
            within.append(within[-1] & attributes.covers(asked if more is None else asked + more))
            if not (attributes.children or np.count_nonzero(within[-1] & wanted)):
                return  # the queue itself would exceed its share
        self._within = np.array(within)
        """Whether the own path is within its shares, by its length below the common ancestor."""
        self._own = [self._rows.row[attributes.info.name] for attributes in path]
        self._compare(above.copy())

    def _compare(self, above: NDArray[np.bool_]) -> None:
        rows, own = self._rows, self._own
        stated, reclaimable = rows.stated.copy(), rows.reclaimable.copy()
        lengths = np.zeros(len(rows.queues), dtype=np.intp)
        neutral = [0, *own]
        above[neutral], stated[neutral], reclaimable[neutral] = True, False, True
        lengths[0] = len(own)
        for depth, level in enumerate(rows.levels, 1):
            parents = rows.parents[level]
            above[level] &= above[parents]
            stated[level] |= stated[parents]
            reclaimable[level] &= reclaimable[parents]
            lengths[level] = lengths[parents]
            if depth <= len(own):
                lengths[own[-depth]] = len(own) - depth
        owed = above & self._within[lengths] & self._asked & reclaimable[:, None]
        # Usage of the root itself, where no job belongs, is never reclaimed.
        owed[neutral] = False
        self._above, self._stated, self._owed, self._lengths = above, stated, owed, lengths
        owing_rows = np.flatnonzero(owed.any(axis=1)).tolist()
        self.owing = {rows.queues[row].info.name: row for row in owing_rows}

    def standing(self, other: str) -> QueueStanding | None:
        """Return how the queue stands to another one; None: the other one owes it nothing."""
        if other not in self._standings:
            self._standings[other] = self._standing(other)
        return self._standings[other]

    def _standing(self, other: str) -> QueueStanding | None:
        row = self.owing.get(other)
        if row is None:
            return None
        own = set(self._own)
        path = self._rows.queues[row].path()
        below = takewhile(lambda queue: self._rows.row[queue.info.name] not in own, path)
        length = int(self._lengths[row])
        theirs = self._stated[row]
        named = theirs | self._rows.stated[self._own[:length]].any(axis=0)
        return QueueStanding(
            tuple(below),
            _columns(self._owed[row]),
            _columns(self._asked & ~self._within[length]),
            _columns(named),
            _columns(theirs & ~self._above[row]),
        )


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
        self._state, self._tree = state, state.tree
        self._counts_expected = counts_expected
        self._queue, self._asked, self._budgets = queue, asked, budgets
        self._totals: dict[EvictionUnit, Counter[int]] = {}

    @cached_property
    def _comparison(self) -> QueueComparison:
        return self._state.comparison(self._queue, self._asked, self._counts_expected)

    @cached_property
    def excess(self) -> dict[tuple[str, int], float]:
        """What the limits of the queue and its ancestors lack, by queue and column."""
        excess: dict[tuple[str, int], float] = {}
        for attributes in self._tree.queues[self._queue].path():
            if not attributes.has_limit:
                continue
            name = attributes.info.name
            will_use = attributes.used + attributes.reserved + self._asked
            if name in self._state.less:
                will_use = will_use - self._state.less[name]
            over = (self._asked > 0) & (will_use > attributes.limit)
            for column in _columns(over) if over.any() else ():
                excess[name, column] = float(will_use[column] - attributes.limit[column])
        return excess

    def owing_queues(self) -> Set[str]:
        """Return the other queues that owe something that the gang asks for."""
        return self._comparison.owing.keys()

    def may_ever_take(self, unit: EvictionUnit) -> bool:
        """Return whether a unit may be evicted for some claim of the gang."""
        if self._budgets:
            disrupted = self._disrupted(unit)
            if any(disrupted[key] > budget.allowed for key, budget in self._budgets.items()):
                return False
        return unit.gang.queue == self._queue or unit.gang.queue in self._comparison.owing

    def decisive_column(self, unit: EvictionUnit) -> int | None:
        """Return the column that entitles the gang to a unit of another queue; None: none does."""
        standing = self._standing(unit.gang.queue)
        if standing is None:
            return None
        taken = self._total(unit)
        for column in self._state.ranked_columns:
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
            if not before_last > attributes.tolerated_share[column]:
                return False
        return True

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

    def _remaining(self, queue: QueueAttributes) -> Vector:
        return self._state.remaining(queue, self._counts_expected)

    def _standing(self, other: str) -> QueueStanding | None:
        return self._comparison.standing(other)

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
    return frozenset(column for column, is_set in enumerate(mask.tolist()) if is_set)
