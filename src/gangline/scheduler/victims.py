"""Victims of preemption: which pods are evicted so that a gang can start.

*Preemption* works within a queue: a gang may evict gangs of lower priority. *Reclaim* works between
queues: a queue that stays within its fair share may reclaim what others use above theirs. Both
rules are strict orders, so an evicted gang can never evict the gang it was evicted for.

Victims are chosen as a set. Pods beyond their gang's minimum come before any gang is broken. Then
the set with the fewest broken gangs, the least lost work and the fewest pods wins. Victims that are
not needed in the end are spared. A broken gang is evicted completely, since the rest of it could
not continue.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gangline.scheduler.bundles import Bundle, Gang, least_loss, may_be_evicted, victims_of
from gangline.scheduler.clearing import cheapest_prefix, orders, without_the_needless
from gangline.scheduler.fairness import BY_AGE, Fairness
from gangline.scheduler.model import PodFacts, PodKey
from gangline.scheduler.outlook import Outlook
from gangline.scheduler.queues import QueueTree
from gangline.scheduler.state import ClusterState
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit

PREEMPTED = "preempted by {} of higher priority"
OUTSTAYED = "it was let into room planned for {} for as long as its like take, and is still there"
RECLAIMED = "reclaimed for {}: its queue is above its fair share"


@dataclass(frozen=True, slots=True)
class Policy:
    """Which evictions are allowed, and which shares order gangs."""

    preempt: bool = True
    """Within a queue, by priority."""
    reclaim: bool = True
    """Between queues, by fair share."""
    fairness: Fairness = BY_AGE
    lodge: bool = False
    """Let gangs into planned room on learned run times, and evict those that outstay them."""


@dataclass(frozen=True, slots=True)
class Clearance:
    """Victims, and the placements that their eviction makes possible."""

    victims: tuple[PodFacts, ...]
    placements: tuple[Placement, ...]
    reason: str


class Candidates:
    """Searches victims among the running gangs, for one cycle."""

    def __init__(self, state: ClusterState, tree: QueueTree, policy: Policy, now: float) -> None:
        self._state, self._tree, self._policy, self._now = state, tree, policy, now
        self._gangs: list[Gang] | None = None
        self.outlook = Outlook(tree)
        """What queues will use once everything decided so far has happened."""
        self._lowest = state.lowest_priority()
        self._spent: set[str] = set()
        """Gangs of which pods were chosen already."""
        self._sorted: dict[tuple[str, int], list[Bundle]] = {}
        """Eviction units by queue and priority of the preemptor, the cheapest first."""

    def clear(self, trial: Trial, unit: Unit) -> Clearance | None:
        """Return the victims for ``unit``; None: no set of victims is sufficient and allowed.

        The scratch allocation is left as it was.
        """
        if self._nobody(unit) or not all(pod.preempts for pod in unit.waiting):
            return None
        bundles = self._bundles(unit)
        best: tuple[tuple[object, ...], list[Bundle], list[Placement]] | None = None
        for ordered in orders(bundles):
            found = cheapest_prefix(trial, unit, ordered)
            if found is None:
                break  # not even all units together free enough resources
            chosen = without_the_needless(trial, *found)
            cost = self._cost(chosen)
            if best is None or cost < best[0]:
                best = cost, chosen, found[1]
        if best is None:
            return None
        _, chosen, placements = best
        self._spent |= {bundle.gang.name for bundle in chosen}
        self._sorted.clear()
        victims = victims_of(chosen)
        for pod in victims:
            self.outlook.leave(self._state.running.queue_of(pod.group), pod)
        self.outlook.expect(unit.name, unit.queue, unit.asked)
        return Clearance(victims, tuple(placements), self._reason(unit, chosen))

    def _reason(self, unit: Unit, chosen: Sequence[Bundle]) -> str:
        if all(self._lodges(bundle.gang, unit) for bundle in chosen):
            return OUTSTAYED.format(unit.name)
        within = all(bundle.gang.queue == unit.queue for bundle in chosen)
        return (PREEMPTED if within else RECLAIMED).format(unit.name)

    def _cost(self, chosen: Sequence[Bundle]) -> tuple[object, ...]:
        broken = {bundle.gang.name: bundle.gang for bundle in chosen if bundle.breaks}
        lost = sum(gang.lost_work(self._now) for gang in broken.values())
        return (len(broken), lost, len(victims_of(chosen)), [b.gang.name for b in chosen])

    def _bundles(self, unit: Unit) -> list[Bundle]:
        """Return all eviction units that may be evicted for ``unit``, the cheapest first."""
        if self._hosts(unit):
            return list(self._permitted(self._all_bundles(unit), unit))
        who = (unit.queue, unit.priority)
        if who not in self._sorted:
            self._sorted[who] = self._all_bundles(unit)
        return list(self._permitted(self._sorted[who], unit))

    def _all_bundles(self, unit: Unit) -> list[Bundle]:
        safe: list[Bundle] = []
        breaking: list[Bundle] = []
        for gang in self._running():
            if gang.name in self._spent or not self._may_go(gang, unit):
                continue
            spare = gang.spare
            cost = self._order(gang)
            safe += [Bundle(gang, (pod,), False, cost) for pod in spare]
            spared = {pod.key for pod in spare}
            core = tuple([pod for pod in gang.pods if pod.key not in spared])
            if core and all(pod.preemptable for pod in gang.pods):
                breaking.append(Bundle(gang, core, True, cost))
        safe.sort(key=lambda bundle: (bundle.cost, least_loss(bundle.pods[0])))
        breaking.sort(key=lambda bundle: bundle.cost)
        return [*safe, *breaking]

    def _order(self, gang: Gang) -> tuple[object, ...]:
        account = self._tree.accounts[gang.queue]
        lost = gang.lost_work(self._now)
        return (account.facts.priority, gang.priority, lost, len(gang.pods), gang.name)

    def _may_go(self, gang: Gang, unit: Unit) -> bool:
        if gang.facts is not None and not gang.facts.preemptable:
            return False
        if self._lodges(gang, unit):
            return self._policy.preempt
        if gang.queue == unit.queue:
            return self._policy.preempt and gang.priority < unit.priority
        return self._policy.reclaim and gang.queue in self._tree.accounts

    def _permitted(self, bundles: Iterable[Bundle], unit: Unit) -> Iterator[Bundle]:
        """Yield the units that disruption budgets and the shares of other queues allow."""
        budgets = {key: budget.allowed for key, budget in self._state.budgets.items()}
        takings = self.outlook.takings(unit.queue, unit.asked)
        for bundle in bundles:
            queue = unit.queue if self._lodges(bundle.gang, unit) else bundle.gang.queue
            if bundle.gang.name == unit.name:
                continue
            if queue != unit.queue and not takings.may_have(queue, bundle.pods):
                continue
            if not self._within_budgets(bundle, budgets):
                continue
            if queue != unit.queue:
                takings.take(queue, bundle.pods)
            yield bundle

    def _within_budgets(self, bundle: Bundle, left: dict[str, int]) -> bool:
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

    def _running(self) -> list[Gang]:
        if self._gangs is None:
            found = sorted(self._state.placed_members.items())
            self._gangs = [gang for name, pods in found if (gang := self._gang(name, pods))]
            for _, pods in found:
                for pod in pods.values():
                    if pod.terminating:
                        self.outlook.leave(self._state.running.queue_of(pod.group), pod)
        return self._gangs

    def _gang(self, name: str, members: Mapping[PodKey, PodFacts]) -> Gang | None:
        pods = tuple(p for p in members.values() if not p.terminating and may_be_evicted(p))
        if not pods:
            return None
        group = pods[0].group
        facts = self._state.groups.get(group) if group is not None else None
        queue = self._state.running.queue_of(group)
        priority = facts.priority if facts is not None else max(pod.priority for pod in pods)
        return Gang(name, queue, priority, pods, facts)

    def _hosts(self, unit: Unit) -> bool:
        """Say whether there are others in the room that is planned for a unit."""
        lodgers = self._state.lodgers if self._policy.lodge else {}
        return bool(lodgers) and unit.group is not None and unit.name in lodgers.values()

    def _lodges(self, gang: Gang, unit: Unit) -> bool:
        """Say whether a gang is in the room that is planned for a unit, and has to make way."""
        return (
            self._policy.lodge
            and gang.facts is not None
            and unit.group is not None
            and self._state.lodgers.get(gang.facts.key) == unit.name
        )

    def _nobody(self, unit: Unit) -> bool:
        """Return quickly whether no gang may be evicted, in the most frequent case: equal
        priorities.
        """
        if (len(self._tree.accounts) > 2 and self._policy.reclaim) or self._hosts(unit):
            return False
        return unit.priority <= self._lowest
