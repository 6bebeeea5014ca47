"""Whom to evict so that somebody else can start: preemption and reclaim. Pure.

*Preemption* is within a queue: a gang may push out gangs of lower priority. *Reclaim* is between
queues: a queue that stays within its entitlement may take back what others have above theirs. Both
rules are strict orders, so what is evicted can never evict in turn whom it was evicted for.

Victims are chosen as a set: pods beyond their gang's minimum before any gang is broken, then as few
broken gangs as possible, then as little lost work, then as few pods; nobody goes whose room is not
needed in the end. A gang that is broken goes as a whole, since the rest of it could not go on.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gangline.scheduler.model import GroupFacts, NodeName, PodFacts, PodKey
from gangline.scheduler.place import place_unit, pods_of
from gangline.scheduler.plugins.node_scores import Amounts
from gangline.scheduler.queues import Account, QueueTree
from gangline.scheduler.shares import Vector
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit

SYSTEM_PRIORITY = 2_000_000_000
"""Pods of this priority and above belong to the cluster itself: they are never evicted."""
SYSTEM_NAMESPACE = "kube-system"
PREEMPTED = "preempted by {} of higher priority"
RECLAIMED = "its queue gives back what it has above its share, to {}"


@dataclass(frozen=True, slots=True)
class Policy:
    """Which evictions are allowed at all."""

    preempt: bool = True
    """Within a queue, by priority."""
    reclaim: bool = True
    """Between queues, by share."""


@dataclass(frozen=True, slots=True)
class Clearance:
    """Victims, and the room that a unit gets through them."""

    victims: tuple[PodFacts, ...]
    placements: tuple[Placement, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class _Gang:
    """A gang that runs, as a candidate."""

    name: str
    queue: str
    priority: int
    pods: tuple[PodFacts, ...]
    facts: GroupFacts | None

    @property
    def spare(self) -> tuple[PodFacts, ...]:
        """Pods that it can do without, the newest of the lowest priority first."""
        if self.facts is None or self.facts.parts:
            # A small gang within it would be left with too few.
            return ()
        allowed = len(self.pods) - self.facts.min_member
        roles = Counter(pod.role for pod in self.pods)
        keep = dict(self.facts.min_task_member)
        spare: list[PodFacts] = []
        for pod in sorted(self.pods, key=_least_loss):
            if len(spare) >= allowed:
                break
            if pod.preemptable and roles[pod.role] > keep.get(pod.role, 0):
                roles[pod.role] -= 1
                spare.append(pod)
        return tuple(spare)

    def lost_work(self, now: float) -> float:
        """Pod-seconds that would be lost."""
        saved = self.facts.checkpointed if self.facts is not None else 0.0
        return sum(max(0.0, now - max(saved, pod.created.timestamp())) for pod in self.pods)


@dataclass(frozen=True, slots=True, eq=False)
class _Bundle:
    """Pods that go together."""

    gang: _Gang
    pods: tuple[PodFacts, ...]
    breaks: bool
    cost: tuple[object, ...]


def _least_loss(pod: PodFacts) -> tuple[int, float, str]:
    return (pod.priority, -pod.created.timestamp(), pod.key)


class Candidates:
    """Gangs that run, for the clearances of one decision."""

    def __init__(self, state: ClusterState, tree: QueueTree, policy: Policy, now: float) -> None:
        self._state, self._tree, self._policy, self._now = state, tree, policy, now
        self._gangs: list[_Gang] | None = None
        self._lowest = state.lowest_priority()
        self._spent: set[str] = set()
        """Gangs of which pods were chosen already."""
        self._sorted: dict[tuple[str, int], list[_Bundle]] = {}
        """Bundles by queue and priority of who asks, the cheapest first."""

    def clear(self, trial: Trial, unit: Unit) -> Clearance | None:
        """Return whom to evict for ``unit``; None: nobody, for it would not help or is not allowed.

        The trial is left as it was.
        """
        if self._nobody(unit) or not all(pod.preempts for pod in unit.waiting):
            return None
        bundles = self._bundles(unit)
        best: tuple[tuple[object, ...], list[_Bundle], list[Placement]] | None = None
        for ordered in _orders(bundles):
            found = _cheapest_prefix(trial, unit, ordered)
            if found is None:
                break  # not even all of them together make enough room
            chosen = _without_the_needless(trial, *found)
            cost = self._cost(chosen)
            if best is None or cost < best[0]:
                best = cost, chosen, found[1]
        if best is None:
            return None
        _, chosen, placements = best
        self._spent |= {bundle.gang.name for bundle in chosen}
        self._sorted.clear()
        return Clearance(_victims(chosen), tuple(placements), self._reason(unit, chosen))

    def _reason(self, unit: Unit, chosen: Sequence[_Bundle]) -> str:
        within = all(bundle.gang.queue == unit.queue for bundle in chosen)
        return (PREEMPTED if within else RECLAIMED).format(unit.name)

    def _cost(self, chosen: Sequence[_Bundle]) -> tuple[object, ...]:
        broken = {bundle.gang.name: bundle.gang for bundle in chosen if bundle.breaks}
        lost = sum(gang.lost_work(self._now) for gang in broken.values())
        return (len(broken), lost, len(_victims(chosen)), [b.gang.name for b in chosen])

    def _bundles(self, unit: Unit) -> list[_Bundle]:
        """All that may go for ``unit``, the cheapest first."""
        who = (unit.queue, unit.priority)
        if who not in self._sorted:
            self._sorted[who] = self._all_bundles(unit)
        return list(self._permitted(self._sorted[who], unit))

    def _all_bundles(self, unit: Unit) -> list[_Bundle]:
        safe: list[_Bundle] = []
        whole: list[_Bundle] = []
        for gang in self._running():
            if gang.name in self._spent or not self._may_go(gang, unit):
                continue
            spare = gang.spare
            cost = self._order(gang)
            safe += [_Bundle(gang, (pod,), False, cost) for pod in spare]
            core = tuple(pod for pod in gang.pods if pod not in set(spare))
            if core and all(pod.preemptable for pod in gang.pods):
                whole.append(_Bundle(gang, core, True, cost))
        safe.sort(key=lambda bundle: (bundle.cost, _least_loss(bundle.pods[0])))
        whole.sort(key=lambda bundle: bundle.cost)
        return [*safe, *whole]

    def _order(self, gang: _Gang) -> tuple[object, ...]:
        account = self._tree.accounts[gang.queue]
        lost = gang.lost_work(self._now)
        return (account.facts.priority, gang.priority, lost, len(gang.pods), gang.name)

    def _may_go(self, gang: _Gang, unit: Unit) -> bool:
        if gang.facts is not None and not gang.facts.preemptable:
            return False
        if gang.queue == unit.queue:
            return self._policy.preempt and gang.priority < unit.priority
        return self._policy.reclaim and gang.queue in self._tree.accounts

    def _permitted(self, bundles: Iterable[_Bundle], unit: Unit) -> Iterator[_Bundle]:
        """Leave out what budgets protect, and what other queues need not give back."""
        budgets = {key: budget.allowed for key, budget in self._state.budgets.items()}
        gone: dict[str, Vector] = {}
        asked = self._tree.vector(dict(unit.asked))
        claims: dict[str, bool] = {}
        for bundle in bundles:
            queue = bundle.gang.queue
            if bundle.gang.name == unit.name:
                continue
            if queue != unit.queue:
                if queue not in claims:
                    claims[queue] = self._claims(unit, queue, asked)
                if not claims[queue] or not self._gives(bundle, unit, asked, gone):
                    continue
            if not self._within_budgets(bundle, budgets):
                continue
            if queue != unit.queue:
                self._take(bundle, gone)
            yield bundle

    def _within_budgets(self, bundle: _Bundle, left: dict[str, int]) -> bool:
        covering = Counter(
            key
            for pod in bundle.pods
            for key, budget in self._state.budgets.items()
            if budget.covers(pod)
        )
        if any(left[key] < count for key, count in covering.items()):
            return False
        for key, count in covering.items():
            left[key] -= count
        return True

    def _claims(self, unit: Unit, other: str, asked: Vector) -> bool:
        """Say whether a unit's queue, and those above it up to where the two meet, may claim."""
        mine, theirs = self._apart(unit.queue, other)
        if not all(account.facts.reclaimable for account in theirs):
            return False
        return not any(account.borrows(asked) for account in mine)

    def _gives(self, bundle: _Bundle, unit: Unit, asked: Vector, gone: dict[str, Vector]) -> bool:
        """Say whether a queue has too much, and keeps its guarantee without this bundle."""
        _, theirs = self._apart(unit.queue, bundle.gang.queue)
        amount = self._amount(bundle)
        relevant = (asked > 0) & (amount > 0)
        if not relevant.any():
            return False
        # All of them, up to where the two queues meet, must have too much of the same: a queue
        # within its part pays for no sibling, and siblings settle what is within the part of all.
        over = relevant
        for account in theirs:
            left = account.used - gone.get(account.facts.name, 0.0)
            over = over & (left > account.entitled * (1 + 1e-9))
            guarantee = self._tree.vector(dict(account.facts.guarantee))
            if ((left - amount < guarantee) & (guarantee > 0))[relevant].any():
                return False
        return bool(over.any())

    def _take(self, bundle: _Bundle, gone: dict[str, Vector]) -> None:
        amount = self._amount(bundle)
        for account in self._tree.accounts[bundle.gang.queue].path():
            name = account.facts.name
            gone[name] = gone.get(name, 0.0) + amount

    def _amount(self, bundle: _Bundle) -> Vector:
        total: Counter[str] = Counter()
        for pod in bundle.pods:
            total.update(dict(pod.shape.request))
        return self._tree.vector(total)

    def _apart(self, one: str, other: str) -> tuple[list[Account], list[Account]]:
        """Return the paths of two queues, up to where they meet."""
        mine = list(self._tree.accounts[one].path())
        theirs = list(self._tree.accounts[other].path())
        shared = {account.facts.name for account in mine} & {a.facts.name for a in theirs}
        return (
            [account for account in mine if account.facts.name not in shared],
            [account for account in theirs if account.facts.name not in shared],
        )

    def _running(self) -> list[_Gang]:
        if self._gangs is None:
            found = sorted(self._state.placed_members.items())
            self._gangs = [gang for name, pods in found if (gang := self._gang(name, pods))]
        return self._gangs

    def _gang(self, name: str, members: Mapping[PodKey, PodFacts]) -> _Gang | None:
        pods = tuple(p for p in members.values() if not p.terminating and _may_be_evicted(p))
        if not pods:
            return None
        group = pods[0].group
        facts = self._state.groups.get(group) if group is not None else None
        queue = self._state.running.queue_of(group)
        priority = facts.priority if facts is not None else max(pod.priority for pod in pods)
        return _Gang(name, queue, priority, pods, facts)

    def _nobody(self, unit: Unit) -> bool:
        """Say quickly, in the most frequent case, that nobody may go: all are equal."""
        if len(self._tree.accounts) > 2 and self._policy.reclaim:
            return False
        return unit.priority <= self._lowest


def _may_be_evicted(pod: PodFacts) -> bool:
    system = pod.priority >= SYSTEM_PRIORITY or pod.key.startswith(f"{SYSTEM_NAMESPACE}/")
    return not system and (pod.ours or pod.group is not None)


def _victims(chosen: Iterable[_Bundle]) -> tuple[PodFacts, ...]:
    """All pods that go: of a gang that is broken, every one."""
    pods: dict[str, PodFacts] = {}
    for bundle in chosen:
        for pod in bundle.gang.pods if bundle.breaks else bundle.pods:
            pods[pod.key] = pod
    return tuple(pods[key] for key in sorted(pods))


def _orders(bundles: list[_Bundle]) -> Iterator[list[_Bundle]]:
    """Ways to go through the candidates: by cost, and the largest of the cheapest kind first."""
    if not bundles:
        return
    yield bundles
    safe = [bundle for bundle in bundles if not bundle.breaks]
    whole = [bundle for bundle in bundles if bundle.breaks]
    size: Callable[[_Bundle], tuple[object, ...]] = lambda b: (b.cost[:2], -len(b.pods), b.cost)  # noqa: E731
    yield [*safe, *sorted(whole, key=size)]


def _cheapest_prefix(
    trial: Trial, unit: Unit, bundles: Sequence[_Bundle]
) -> tuple[list[_Bundle], list[Placement]] | None:
    """Find by halving how many of the first bundles have to go; None: all are not enough."""

    freeing = _Freeing(trial, bundles)

    def attempt(count: int) -> list[Placement] | None:
        cleared = trial.fork(freeing.free_after(count))
        mark = cleared.mark()
        place_unit(cleared, unit, unit.waiting[: unit.needed])
        placed = cleared.since(mark)
        return placed if unit.satisfied_by(pods_of(placed)) else None

    found = attempt(len(bundles))
    if found is None:
        return None
    low, high = 0, len(bundles)
    while high - low > 1:
        middle = (low + high) // 2
        placed = attempt(middle)
        if placed is None:
            low = middle
        else:
            high, found = middle, placed
    return list(bundles[:high]), found


class _Freeing:
    """The free amounts once the first so many bundles have gone."""

    def __init__(self, trial: Trial, bundles: Sequence[_Bundle]) -> None:
        self._free = trial.free
        cells: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for index, bundle in enumerate(bundles):
            for placement in _room_of(trial, bundle):
                for column, amount, _ in placement.demand.parts:
                    cells[column].append((index, placement.row, amount))
        self._cells = {column: np.array(listed).T for column, listed in cells.items()}

    def free_after(self, count: int) -> Amounts:
        free = self._free.copy()
        for column, (indices, rows, amounts) in self._cells.items():
            gone = int(np.searchsorted(indices, count))
            np.add.at(free[column], rows[:gone], amounts[:gone])
        return free


def _without_the_needless(
    trial: Trial, bundles: list[_Bundle], placements: Sequence[Placement]
) -> list[_Bundle]:
    """Spare, from the dearest on, whoever's room the placements do not need."""
    short: dict[int, Counter[int]] = defaultdict(Counter)
    for placement in placements:
        for column, amount, _ in placement.demand.parts:
            short[placement.row][column] += amount * placement.count
    for row, amounts in short.items():
        for column in amounts:
            amounts[column] -= int(trial.free[column, row])
    freed = {id(bundle): list(_room_of(trial, bundle)) for bundle in bundles}
    for bundle in bundles:
        _add(short, freed[id(bundle)], -1)
    needed: list[_Bundle] = []
    for bundle in reversed(bundles):
        _add(short, freed[id(bundle)], 1)
        if any(short[p.row][c] > 0 for p in freed[id(bundle)] for c in short[p.row]):
            _add(short, freed[id(bundle)], -1)
            needed.append(bundle)
    return needed[::-1]


def _add(short: dict[int, Counter[int]], freed: Iterable[Placement], sign: int) -> None:
    for placement in freed:
        if placement.row in short:
            for column, amount, _ in placement.demand.parts:
                if column in short[placement.row]:
                    short[placement.row][column] += sign * amount * placement.count


def _room_of(trial: Trial, bundle: _Bundle) -> Iterator[Placement]:
    """The room that a bundle's pods hold."""
    for pod in bundle.pods:
        row = trial.nodes.rows.get(pod.node or NodeName(""))
        if row is not None:
            yield Placement((pod,), row, trial.nodes.demand(pod.shape.request))
