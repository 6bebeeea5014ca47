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
from gangline.scheduler.preemption.protection import ProtectedGangs
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
        self._protected = ProtectedGangs(state, now)
        self._lowest = state.lowest_priority()
        self._chosen_gangs: set[str] = set()
        """Gangs of which pods were chosen already."""
        self._sorted: dict[tuple[str, int], list[EvictionUnit]] = {}
        """Eviction units by queue and priority of the preemptor, the cheapest first."""

    def find_victims(
        self, scratch: ScratchAllocation, preemptor: PendingGang
    ) -> PreemptionResult | None:
        """Return the victims for ``preemptor``; None: no set of victims is sufficient and allowed.

        The scratch allocation is left as it was.
        """
        if self._none_evictable(preemptor) or not all(pod.may_preempt for pod in preemptor.pending):
            return None
        units = self._eviction_units(preemptor)
        best: tuple[tuple[object, ...], list[EvictionUnit], list[Placement]] | None = None
        for ordered in candidate_orders(units):
            found = minimal_prefix(scratch, preemptor, ordered)
            if found is None:
                break  # not even all units together free enough resources
            chosen = reprieve_victims(scratch, *found)
            cost = self._cost(chosen)
            if best is None or cost < best[0]:
                best = cost, chosen, found[1]
        if best is None:
            return None
        _, chosen, placements = best
        self._chosen_gangs |= {unit.gang.name for unit in chosen}
        self._sorted.clear()
        victims = pods_to_evict(chosen)
        for pod in victims:
            self.reclaim_state.add_leaving(self._state.usage.queue_of(pod.group), pod)
        self.reclaim_state.add_expected(preemptor.name, preemptor.queue, preemptor.requested)
        return PreemptionResult(victims, tuple(placements), self._reason(preemptor, chosen))

    def _reason(self, preemptor: PendingGang, chosen: Sequence[EvictionUnit]) -> str:
        within = all(unit.gang.queue == preemptor.queue for unit in chosen)
        return (PREEMPTED if within else RECLAIMED).format(preemptor.name)

    def _cost(self, chosen: Sequence[EvictionUnit]) -> tuple[object, ...]:
        broken = {unit.gang.name: unit.gang for unit in chosen if unit.breaks_gang}
        lost = sum(gang.lost_work(self._now) for gang in broken.values())
        return (len(broken), lost, len(pods_to_evict(chosen)), [unit.gang.name for unit in chosen])

    def _eviction_units(self, preemptor: PendingGang) -> list[EvictionUnit]:
        """Return all eviction units that may be evicted for ``preemptor``, the cheapest first."""
        claimant = (preemptor.queue, preemptor.priority)
        if claimant not in self._sorted:
            self._sorted[claimant] = self._all_eviction_units(preemptor)
        return list(self._permitted(self._sorted[claimant], preemptor))

    def _all_eviction_units(self, preemptor: PendingGang) -> list[EvictionUnit]:
        safe: list[EvictionUnit] = []
        breaking: list[EvictionUnit] = []
        for gang in self._running():
            if gang.name in self._chosen_gangs or not self._may_be_evicted(gang, preemptor):
                continue
            extra = gang.extra_pods
            cost = self._eviction_cost(gang)
            safe += [EvictionUnit(gang, (pod,), False, cost) for pod in extra]
            spared = {pod.key for pod in extra}
            core = tuple([pod for pod in gang.pods if pod.key not in spared])
            if core and all(pod.preemptable for pod in gang.pods):
                breaking.append(EvictionUnit(gang, core, True, cost))
        safe.sort(key=lambda unit: (unit.cost, least_lost_work(unit.pods[0])))
        breaking.sort(key=lambda unit: unit.cost)
        return [*safe, *breaking]

    def _eviction_cost(self, gang: RunningGang) -> tuple[object, ...]:
        queue = self._tree.queues[gang.queue]
        lost = gang.lost_work(self._now)
        return (queue.info.priority, gang.priority, lost, len(gang.pods), gang.name)

    def _may_be_evicted(self, gang: RunningGang, preemptor: PendingGang) -> bool:
        if gang.info is not None and not gang.info.preemptable:
            return False
        if self._protected.is_protected(gang):
            return False
        if gang.queue == preemptor.queue:
            return self._policy.preempt and gang.priority < preemptor.priority
        return self._policy.reclaim and gang.queue in self._tree.queues

    def _permitted(
        self, units: Iterable[EvictionUnit], preemptor: PendingGang
    ) -> Iterator[EvictionUnit]:
        """Yield the units that disruption budgets and the shares of other queues allow."""
        budgets = {key: budget.allowed for key, budget in self._state.budgets.items()}
        share = self.reclaim_state.budget_for(preemptor.queue, preemptor.requested)
        for unit in units:
            queue = unit.gang.queue
            if unit.gang.name == preemptor.name:
                continue
            if queue != preemptor.queue and not share.may_reclaim(queue, unit.pods):
                continue
            if not self._within_budgets(unit, budgets):
                continue
            if queue != preemptor.queue:
                share.reclaim(queue, unit.pods)
            yield unit

    def _within_budgets(self, unit: EvictionUnit, left: dict[str, int]) -> bool:
        covering = Counter(
            key
            for pod in unit.pods
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
        info = self._state.groups.get(group) if group is not None else None
        queue = self._state.usage.queue_of(group)
        priority = info.priority if info is not None else max(pod.priority for pod in pods)
        return RunningGang(name, queue, priority, pods, info)

    def _none_evictable(self, preemptor: PendingGang) -> bool:
        """Return quickly whether no gang may be evicted, in the most frequent case: equal
        priorities.
        """
        reclaims = len(self._tree.queues) > 2 and self._policy.reclaim
        return not reclaims and preemptor.priority <= self._lowest
