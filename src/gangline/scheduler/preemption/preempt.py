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

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.minimize import (
    candidate_orders,
    minimal_prefix,
    reprieve_victims,
)
from gangline.scheduler.preemption.reclaim import ReclaimState
from gangline.scheduler.preemption.victim_sets import (
    EvictionUnit,
    RunningGang,
    is_evictable,
    least_lost_work,
    pods_to_evict,
)
from gangline.scheduler.queueing.fair_share import ORDER_BY_AGE, FairnessPolicy
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import PodInfo, PodKey

PREEMPTED = "preempted by {} of higher priority"
RECLAIMED = "reclaimed for {}: its queue is above its fair share"


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """Which evictions are allowed, and which shares order gangs."""

    preempt: bool = True
    """Within a queue, by priority."""
    reclaim: bool = True
    """Between queues, by fair share."""
    fairness: FairnessPolicy = ORDER_BY_AGE


@dataclass(frozen=True, slots=True)
class PreemptionResult:
    """Victims, and the placements that their eviction makes possible."""

    victims: tuple[PodInfo, ...]
    placements: tuple[Placement, ...]
    reason: str


class PreemptionEvaluator:
    """Searches victims among the running gangs, for one cycle."""

    def __init__(
        self, state: SchedulerCache, tree: QueueTree, policy: EvictionPolicy, now: float
    ) -> None:
        self._state, self._tree, self._policy, self._now = state, tree, policy, now
        self._gangs: list[RunningGang] | None = None
        self.reclaim_state = ReclaimState(tree)
        """What queues will use once everything decided so far has happened."""
        self._lowest = state.lowest_priority()
        self._chosen_gangs: set[str] = set()
        """Gangs of which pods were chosen already."""
        self._sorted: dict[tuple[str, int], list[EvictionUnit]] = {}
        """Eviction units by queue and priority of the preemptor, the cheapest first."""

    def find_victims(self, trial: ScratchAllocation, unit: PendingGang) -> PreemptionResult | None:
        """Return the victims for ``unit``; None: no set of victims is sufficient and allowed.

        The scratch allocation is left as it was.
        """
        if self._none_evictable(unit) or not all(pod.may_preempt for pod in unit.pending):
            return None
        bundles = self._eviction_units(unit)
        best: tuple[tuple[object, ...], list[EvictionUnit], list[Placement]] | None = None
        for ordered in candidate_orders(bundles):
            found = minimal_prefix(trial, unit, ordered)
            if found is None:
                break  # not even all units together free enough resources
            chosen = reprieve_victims(trial, *found)
            cost = self._cost(chosen)
            if best is None or cost < best[0]:
                best = cost, chosen, found[1]
        if best is None:
            return None
        _, chosen, placements = best
        self._chosen_gangs |= {bundle.gang.name for bundle in chosen}
        self._sorted.clear()
        victims = pods_to_evict(chosen)
        for pod in victims:
            self.reclaim_state.add_leaving(self._state.usage.queue_of(pod.group), pod)
        self.reclaim_state.add_expected(unit.name, unit.queue, unit.requested)
        return PreemptionResult(victims, tuple(placements), self._reason(unit, chosen))

    def _reason(self, unit: PendingGang, chosen: Sequence[EvictionUnit]) -> str:
        within = all(bundle.gang.queue == unit.queue for bundle in chosen)
        return (PREEMPTED if within else RECLAIMED).format(unit.name)

    def _cost(self, chosen: Sequence[EvictionUnit]) -> tuple[object, ...]:
        broken = {bundle.gang.name: bundle.gang for bundle in chosen if bundle.breaks_gang}
        lost = sum(gang.lost_work(self._now) for gang in broken.values())
        return (len(broken), lost, len(pods_to_evict(chosen)), [b.gang.name for b in chosen])

    def _eviction_units(self, unit: PendingGang) -> list[EvictionUnit]:
        """Return all eviction units that may be evicted for ``unit``, the cheapest first."""
        who = (unit.queue, unit.priority)
        if who not in self._sorted:
            self._sorted[who] = self._all_eviction_units(unit)
        return list(self._permitted(self._sorted[who], unit))

    def _all_eviction_units(self, unit: PendingGang) -> list[EvictionUnit]:
        safe: list[EvictionUnit] = []
        breaking: list[EvictionUnit] = []
        for gang in self._running():
            if gang.name in self._chosen_gangs or not self._may_be_evicted(gang, unit):
                continue
            spare = gang.extra_pods
            cost = self._eviction_cost(gang)
            safe += [EvictionUnit(gang, (pod,), False, cost) for pod in spare]
            spared = {pod.key for pod in spare}
            core = tuple([pod for pod in gang.pods if pod.key not in spared])
            if core and all(pod.preemptable for pod in gang.pods):
                breaking.append(EvictionUnit(gang, core, True, cost))
        safe.sort(key=lambda bundle: (bundle.cost, least_lost_work(bundle.pods[0])))
        breaking.sort(key=lambda bundle: bundle.cost)
        return [*safe, *breaking]

    def _eviction_cost(self, gang: RunningGang) -> tuple[object, ...]:
        account = self._tree.queues[gang.queue]
        lost = gang.lost_work(self._now)
        return (account.info.priority, gang.priority, lost, len(gang.pods), gang.name)

    def _may_be_evicted(self, gang: RunningGang, unit: PendingGang) -> bool:
        if gang.info is not None and not gang.info.preemptable:
            return False
        if gang.queue == unit.queue:
            return self._policy.preempt and gang.priority < unit.priority
        return self._policy.reclaim and gang.queue in self._tree.queues

    def _permitted(
        self, bundles: Iterable[EvictionUnit], unit: PendingGang
    ) -> Iterator[EvictionUnit]:
        """Yield the units that disruption budgets and the shares of other queues allow."""
        budgets = {key: budget.allowed for key, budget in self._state.budgets.items()}
        takings = self.reclaim_state.budget_for(unit.queue, unit.requested)
        for bundle in bundles:
            queue = bundle.gang.queue
            if bundle.gang.name == unit.name:
                continue
            if queue != unit.queue and not takings.may_reclaim(queue, bundle.pods):
                continue
            if not self._within_budgets(bundle, budgets):
                continue
            if queue != unit.queue:
                takings.reclaim(queue, bundle.pods)
            yield bundle

    def _within_budgets(self, bundle: EvictionUnit, left: dict[str, int]) -> bool:
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

    def _running(self) -> list[RunningGang]:
        if self._gangs is None:
            found = sorted(self._state.placed_members.items())
            self._gangs = [gang for name, pods in found if (gang := self._gang(name, pods))]
            for _, pods in found:
                for pod in pods.values():
                    if pod.is_terminating:
                        self.reclaim_state.add_leaving(self._state.usage.queue_of(pod.group), pod)
        return self._gangs

    def _gang(self, name: str, members: Mapping[PodKey, PodInfo]) -> RunningGang | None:
        pods = tuple(p for p in members.values() if not p.is_terminating and is_evictable(p))
        if not pods:
            return None
        group = pods[0].group
        facts = self._state.groups.get(group) if group is not None else None
        queue = self._state.usage.queue_of(group)
        priority = facts.priority if facts is not None else max(pod.priority for pod in pods)
        return RunningGang(name, queue, priority, pods, facts)

    def _none_evictable(self, unit: PendingGang) -> bool:
        """Return quickly whether no gang may be evicted, in the most frequent case: equal
        priorities.
        """
        reclaims = len(self._tree.queues) > 2 and self._policy.reclaim
        return not reclaims and unit.priority <= self._lowest
