"""Victims of preemption: which pods are evicted so that a gang can start.

*Preemption* works within a queue: a gang may evict gangs of lower priority. *Reclaim* works between
queues: a queue that stays within its fair share may reclaim what others use above theirs. Both
rules are strict orders, so an evicted gang can never evict the gang it was evicted for.

One search places the gang on what is free now, what is ending, and what may be evicted. Queues'
shares, guarantees and limits, priorities and disruption budgets are constraints inside the search
(``rights``), the cost of the victims is its order (``victim_sets``). A broken gang is evicted
completely, since the rest of it could not continue. If pods that are ending make enough resources
free, nobody is evicted.

The search is bounded. First the lowest priority is found below which victims are sufficient if all
of their gangs were evicted: one placement for each step of a bisection. Then at most
``MAX_REGIONS`` network domains, at most 1,024 nodes for each shape of pods, at most 256 steps on
each node, 32 placements to spare victims and 16 to break a single gang are tried (``gang_search``,
``row_options``, ``row_search``). No gang is in the result without which the gang could be placed,
as long as these 32 placements suffice. Where the bound ends the search a gang waits although other
victims might be sufficient; it never evicts more than its rights.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.domains import TopologyDomain
from gangline.scheduler.placement.gang import allowed_domains
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.preemption.clearing import Clearing, ending_pods, placed_on_rows
from gangline.scheduler.preemption.gang_search import GangSearch, VictimSet, place_needed
from gangline.scheduler.preemption.protection import ProtectedGangs
from gangline.scheduler.preemption.reservations import has_expired
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally, ReclaimState
from gangline.scheduler.preemption.victim_sets import (
    EvictionUnit,
    RunningGang,
    eviction_units,
    is_evictable,
    pods_to_evict,
    without_overlap,
)
from gangline.scheduler.queueing.fair_share import ORDER_BY_AGE, FairnessPolicy
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.queueing.subgroups import split_into_subgroups
from gangline.scheduler.types.types import PodInfo, PodKey

PREEMPTED = "preempted by {} of higher priority"
RECLAIMED = "reclaimed for {}: its queue is above its fair share"
MAX_REGIONS = 16
"""Number of network domains in which victims are searched, the closest first."""


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
    """Empty: pods that are ending already make enough resources free."""
    placements: tuple[Placement, ...]
    reason: str


class PreemptionEvaluator:
    """Searches victims among the running gangs, for one cycle.

    Args:
        state: the cache.
        tree: the queues.
        policy: which evictions are allowed.
        now: the time in seconds since the epoch.
        was_bound: whether this cycle has bound pods of a gang: such a gang is no victim.
    """

    def __init__(
        self,
        state: SchedulerCache,
        tree: QueueTree,
        policy: EvictionPolicy,
        now: float,
        was_bound: Callable[[str], bool],
    ) -> None:
        self._state, self._tree, self._policy, self._now = state, tree, policy, now
        self._was_bound = was_bound
        self._gangs: list[RunningGang] | None = None
        self.reclaim_state = ReclaimState(tree)
        """What queues will use once everything decided so far has happened."""
        self._protected = ProtectedGangs(state, now)
        self._lowest = state.lowest_priority()
        self._chosen_gangs: set[str] = set()
        """Gangs of which pods were chosen already."""
        self._victims: list[PodInfo] = []
        """These pods: they count as ending for the gangs that follow."""
        self._units: dict[str, list[EvictionUnit]] = {}
        """Eviction units by gang."""

    def evicts_from(self, gang: str) -> bool:
        """Return whether this cycle evicts pods of a gang."""
        return gang in self._chosen_gangs

    def find_victims(
        self, scratch: ScratchAllocation, preemptor: PendingGang
    ) -> PreemptionResult | None:
        """Return the victims for ``preemptor``; None: no set of victims is sufficient and allowed.

        The scratch allocation is left as it was.
        """
        if self._none_evictable(preemptor) or not all(pod.may_preempt for pod in preemptor.pending):
            return None
        asked = self._tree.request_vector(preemptor.requested)
        if not self._preempts(preemptor):
            # Ending pods are not counted yet: they only reduce what other queues owe.
            early = EvictionRights(self.reclaim_state, preemptor.queue, asked, {})
            if not (self._policy.reclaim and early.may_reclaim()):
                return None
        gangs = self._running()
        rights = EvictionRights(self.reclaim_state, preemptor.queue, asked, self._state.budgets)
        known = self._state.reservations.get(preemptor.name)
        # Pods that did not end while a reservation waited for them may never end.
        waited = known is not None and known.preempting and has_expired(known, self._now)
        ending = placed_on_rows(self._state, self._victims)
        if not waited:
            ending += placed_on_rows(self._state, ending_pods(self._state))
        clearing = Clearing(self._state, scratch, ending)
        if ending and rights.covers_limits(EvictionTally()):
            region = clearing.base.within
            placements = place_needed(clearing.after(()), preemptor, region)
            if placements is not None:
                return self._accept(preemptor, VictimSet((), tuple(placements)))
        units = [
            unit
            for gang in gangs
            if self._may_be_evicted(gang, preemptor)
            for unit in self._units_of(gang)
            if rights.may_ever_take(unit)
        ]
        units.sort(key=lambda unit: unit.order)
        if not units or not _limits_reachable(rights, units):
            return None
        found = self._search(clearing, rights, preemptor, units)
        return self._accept(preemptor, found) if found is not None else None

    def _search(
        self,
        clearing: Clearing,
        rights: EvictionRights,
        preemptor: PendingGang,
        units: Sequence[EvictionUnit],
    ) -> VictimSet | None:
        """Search among the units of the lowest priorities that are sufficient."""
        levels = _levels(units)
        freeable: dict[int, Amounts] = {}

        def suffices(level: int) -> bool:
            cleared = clearing.after(without_overlap(levels[level]))
            freeable[level] = cleared.free - clearing.base.free
            return place_needed(cleared, preemptor, None) is not None

        low, high = 0, len(levels) - 1
        if not suffices(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if suffices(middle) else (middle + 1, high)
        for level in range(low, len(levels)):
            if level not in freeable:
                suffices(level)
            search = GangSearch(clearing, rights, preemptor, levels[level], freeable[level])
            found = self._best_of_regions(search, clearing, preemptor, levels[level])
            if found is not None:
                return found
        return None

    def _best_of_regions(
        self,
        search: GangSearch,
        clearing: Clearing,
        preemptor: PendingGang,
        units: Sequence[EvictionUnit],
    ) -> VictimSet | None:
        """Return the cheapest victims in the closest network domains, or anywhere."""
        rule = preemptor.network
        if rule is None:
            return search.best(None)
        tier = -1
        found: list[VictimSet] = []
        domains = self._sufficient_domains(clearing, preemptor, units)
        for domain in islice(domains, MAX_REGIONS):
            if found and domain.tier > tier:
                break
            tier = domain.tier
            within = search.best(domain.rows)
            found += [within] if within is not None else []
        if not found and not rule.hard:
            return search.best(None)
        return min(found, key=lambda each: each.order, default=None)

    def _sufficient_domains(
        self, clearing: Clearing, preemptor: PendingGang, units: Sequence[EvictionUnit]
    ) -> Iterator[TopologyDomain]:
        """Yield the domains that hold the gang if all units are evicted, the closest first."""
        assert preemptor.network is not None
        listed = without_overlap(units)
        for domain in allowed_domains(self._state.nodes, preemptor, preemptor.network):
            if place_needed(clearing.after(listed), preemptor, domain.rows) is not None:
                yield domain

    def _accept(self, preemptor: PendingGang, found: VictimSet) -> PreemptionResult:
        self._chosen_gangs |= {unit.gang.name for unit in found.units}
        victims = pods_to_evict(found.units)
        self._victims += victims
        for pod in victims:
            self.reclaim_state.add_leaving(self._state.usage.queue_of(pod.group), pod)
        self.reclaim_state.add_expected(preemptor.name, preemptor.queue, preemptor.requested)
        within = all(unit.gang.queue == preemptor.queue for unit in found.units)
        reason = (PREEMPTED if within else RECLAIMED).format(preemptor.name)
        return PreemptionResult(victims, found.placements, reason)

    def _units_of(self, gang: RunningGang) -> list[EvictionUnit]:
        units = self._units.get(gang.name)
        if units is None:
            priority = self._tree.queues[gang.queue].info.priority
            units = self._units[gang.name] = eviction_units(gang, priority, self._now)
        return units

    def _may_be_evicted(self, gang: RunningGang, preemptor: PendingGang) -> bool:
        if gang.info is not None and not gang.info.preemptable:
            return False
        if gang.name == preemptor.name or gang.name in self._chosen_gangs:
            return False
        if self._was_bound(gang.name) or self._protected.is_protected(gang):
            return False
        if gang.queue == preemptor.queue:
            return self._policy.preempt and gang.priority < preemptor.priority
        return self._policy.reclaim and gang.queue in self._tree.queues

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
        rules = info.subgroups if info is not None else ()
        subgroups = split_into_subgroups(rules, pods, ()) if rules else ()
        return RunningGang(name, queue, priority, pods, info, subgroups)

    def _preempts(self, preemptor: PendingGang) -> bool:
        """Return whether some running gang may have a lower priority."""
        return self._policy.preempt and preemptor.priority > self._lowest

    def _none_evictable(self, preemptor: PendingGang) -> bool:
        """Return quickly whether no gang may be evicted, in the most frequent case: equal
        priorities.
        """
        reclaims = len(self._tree.queues) > 2 and self._policy.reclaim
        return not (reclaims or self._preempts(preemptor))


def _levels(units: Sequence[EvictionUnit]) -> list[list[EvictionUnit]]:
    """Return the units up to each priority of broken gangs, in the order of the cost."""
    tiers = sorted({unit.cost.broken_tier for unit in units})
    return [[unit for unit in units if unit.cost.broken_tier <= tier] for tier in tiers]


def _limits_reachable(rights: EvictionRights, units: Iterable[EvictionUnit]) -> bool:
    """Return whether all units together free what the limits of queues lack."""
    return rights.could_cover_limits(without_overlap(units))
