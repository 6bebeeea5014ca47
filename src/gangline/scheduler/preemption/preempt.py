"""Victims of preemption: which pods are evicted so that a gang can start.

*Preemption* works within a queue: a gang may evict gangs of lower priority. *Reclaim* works between
queues: a queue that stays within its fair share may reclaim what others use above theirs. Both
rules are strict orders, so an evicted gang can never evict the gang it was evicted for.

One search places the gang on what is free now, what is ending, and what may be evicted. Queues'
shares, guarantees and limits, priorities and disruption budgets are constraints inside the search
(``rights``), the cost of the victims is its order (``victims``). A broken gang is evicted
completely, since the rest of it could not continue.

1. If pods that are ending make enough resources free, nobody is evicted.
2. The lowest priority is found below which victims are sufficient if all of their gangs were
   evicted: one placement for each step of a bisection.
3. From this priority up, the cheapest victims are searched (``gang_search``): in at most
   ``MAX_REGIONS`` network domains, on at most 1,024 nodes for each shape of pods, with at most 256
   steps on each node, 32 placements to spare victims and 16 to break a single gang.

No gang is in the result without which the gang could be placed, as long as these 32 placements
suffice. Where a bound ends the search a gang waits although other victims might be sufficient; it
never evicts more than its rights.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_table import TopologyDomain
from gangline.scheduler.placement.gang import allowed_domains
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.fitting_pods import may_fit
from gangline.scheduler.preemption.gang_search import GangSearch, VictimSet, place_needed
from gangline.scheduler.preemption.reservations import has_expired
from gangline.scheduler.preemption.rights import EvictionRights, EvictionTally, ReclaimState
from gangline.scheduler.preemption.victims import (
    NO_COST,
    Clearing,
    EndingPods,
    EvictionUnit,
    ProtectedGangs,
    RunningGang,
    end_pods,
    ending_pods,
    eviction_units,
    is_evictable,
    placed_gangs,
    placed_on_rows,
    pods_to_evict,
    without_overlap,
)
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.order import ORDER_BY_AGE, FairnessPolicy
from gangline.scheduler.queueing.overcommit import OVERCOMMIT, AdmissionPolicy
from gangline.scheduler.queueing.queue_tree import QueueTree, ShareClaim
from gangline.scheduler.types import PodInfo

PREEMPTED = "preempted by {} of higher priority"
RECLAIMED = "reclaimed for {}: its queue is above its fair share"
MAX_REGIONS = 16
"""Number of network domains in which victims are searched, the closest first."""


def eviction_reason(beneficiary: str, within_queue: bool) -> str:
    """Return the reason of an eviction: the rule that allows it, with the name of the gang."""
    return (PREEMPTED if within_queue else RECLAIMED).format(beneficiary)


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """Which evictions are allowed, and which shares order gangs."""

    preempt: bool = True
    """Within a queue, by priority."""
    reclaim: bool = True
    """Between queues, by fair share."""
    fairness: FairnessPolicy = ORDER_BY_AGE
    admission: AdmissionPolicy = OVERCOMMIT


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
        self._gangs: dict[str, list[RunningGang]] | None = None
        """Running gangs by queue."""
        self._ending: EndingPods | None = None
        """Pods that were ending before the cycle, and ``_victims``."""
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
        self, scratch: ScratchAllocation, preemptor: PendingGang, displaces: bool = False
    ) -> PreemptionResult | None:
        """Return the victims for ``preemptor``; None: no set of victims is sufficient and allowed.

        Args:
            scratch: the allocation; it is left as it was.
            displaces: whether reservations give way to the gang: then it may wait for pods that
                are ending, even if it may evict nobody.
        """
        rights = self._rights_of(preemptor)
        may_evict = self._may_evict(preemptor, rights)
        if not may_evict and not (displaces and _may_preempt(preemptor)):
            return None
        if self._gangs is None:
            self._running()
            rights = self._rights_of(preemptor)  # ending pods count from here on
        gangs, clearing = self._running(), self._clearing_for(scratch, preemptor)
        # 1. Ending pods count for every gang: what others wait for is charged as a reservation.
        placements = _place_after_endings(clearing, rights, preemptor)
        if placements is not None:
            return self._accept(preemptor, VictimSet((), tuple(placements)))
        if not may_evict:
            return None
        # 2. Units that the gang may not take, whatever else is chosen, must not raise the bound of
        # the bisection below.
        units = [
            unit
            for queue in (preemptor.queue, *(rights.owing_queues() & gangs.keys()))
            for gang in gangs.get(queue, ())
            if self._may_be_evicted(gang, preemptor)
            for unit in self._units_of(gang)
            if rights.may_ever_take(unit)
        ]
        if not units:
            return None
        if rights.excess and not rights.could_cover_limits(without_overlap(units)):
            return None  # cheap, and saves the placements of a search in vain
        # 3. The victims of this gang count as ending for the gangs that follow (`_accept`), so two
        # preemptors of one cycle never count on the same pods.
        victims = self._search(clearing, rights, preemptor, units)
        return self._accept(preemptor, victims) if victims is not None else None

    def fits_after_endings(self, scratch: ScratchAllocation, preemptor: PendingGang) -> bool:
        """Return whether pods that are ending are sufficient for a gang that displaces others."""
        if not _may_preempt(preemptor):
            return False
        self._running()
        rights, clearing = self._rights_of(preemptor), self._clearing_for(scratch, preemptor)
        return _place_after_endings(clearing, rights, preemptor) is not None

    def still_fits(
        self, scratch: ScratchAllocation, gang: PendingGang, placements: Iterable[Placement]
    ) -> bool:
        """Return whether a reservation can be used once all pods that are ending have ended.

        Args:
            scratch: the allocation, to which the reservation is not charged.
        """
        self._running()
        if not self._rights_of(gang).covers_limits(EvictionTally()):
            return False
        placements = list(placements)
        rows = sorted({placement.row for placement in placements})
        names = [self._state.nodes.name_of(row) for row in rows]
        cleared = scratch.fork(scratch.free.copy())
        holders = [pod for own in gang.pending for pod in cleared.volumes.holders(own)]
        pods = [*holders, *(pod for name in names for pod in self._state.pods_on(name))]
        leaving = {pod.key: pod for pod in pods if pod.is_terminating}.values()
        end_pods(self._state, cleared, placed_on_rows(self._state, (*leaving, *self._victims)))
        return all(
            cleared.place_on_row(pod, placement.row)
            for placement in placements
            for pod in placement.pods
        )

    def owing_queues(self, preemptor: PendingGang) -> Set[str]:
        """Return the queues that will owe something to a gang once expected gangs have started."""
        if not self._policy.reclaim:
            return frozenset()
        return self._rights_against_expected(preemptor).owing_queues()

    def may_displace(
        self, preemptor: PendingGang, owners: Iterable[PendingGang]
    ) -> list[PendingGang]:
        """Return those owners of reservations in other queues that the gang could reclaim from if
        they had started: they give way to it already now.

        Args:
            owners: owners of reservations in ``owing_queues``, the first to give way first.
        """
        rights = self._rights_against_expected(preemptor)
        tally, yielding = EvictionTally(), []
        for owner in owners:
            pods = owner.pending[: owner.needed]
            started = RunningGang(owner.id, owner.queue, owner.priority, pods, None)
            added = tally.copy()
            if rights.add(added, EvictionUnit(started, pods, True, NO_COST)):
                tally = added
                yielding.append(owner)
        return yielding

    def _may_evict(self, preemptor: PendingGang, rights: EvictionRights) -> bool:
        """Return quickly whether a gang may evict pods at all.

        Mostly all priorities are equal, and there are no queues besides the root and the default.
        """
        preempts = self._policy.preempt and preemptor.priority > self._lowest
        reclaims = self._policy.reclaim and len(self._tree.queues) > 2
        if not (preempts or reclaims) or not _may_preempt(preemptor):
            return False
        # Ending pods need not be counted yet: they only reduce what other queues owe.
        return preempts or bool(rights.owing_queues())

    def _rights_of(self, preemptor: PendingGang) -> EvictionRights:
        asked = self._tree.request_vector(preemptor.requested)
        return EvictionRights(self.reclaim_state, preemptor.queue, asked, self._state.budgets)

    def _rights_against_expected(self, preemptor: PendingGang) -> EvictionRights:
        self._running()
        asked = self._tree.request_vector(preemptor.requested)
        return EvictionRights(self.reclaim_state, preemptor.queue, asked, {}, counts_expected=True)

    def _clearing_for(self, scratch: ScratchAllocation, preemptor: PendingGang) -> Clearing:
        reservation = self._state.reservations.get(preemptor.id)
        # Pods that did not end while a reservation waited for them may never end.
        waited = (
            reservation is not None
            and reservation.preempting
            and has_expired(reservation, self._now)
        )
        if waited:
            return Clearing(self._state, scratch, EndingPods(self._state, self._victims))
        if self._ending is None:
            listed = (*self._victims, *ending_pods(self._state))
            self._ending = EndingPods(self._state, listed)
        return Clearing(self._state, scratch, self._ending)

    def _search(
        self,
        clearing: Clearing,
        rights: EvictionRights,
        preemptor: PendingGang,
        units: Sequence[EvictionUnit],
    ) -> VictimSet | None:
        """Search among the units of the lowest priorities that are sufficient."""

        # Evicting a complete level ignores rights, so it bounds what the search can reach from
        # above: a level that does not suffice is skipped, one that suffices may still fail.
        def suffice(among: Sequence[EvictionUnit]) -> bool:
            evicted = without_overlap(among)
            free = clearing.free_after(evicted)
            # Attachments are not part of ``free``.
            attaches = bool(self._state.storage.limits)
            if not attaches and not may_fit(self._state.nodes, free, preemptor, None):
                return False
            cleared = clearing.after(evicted, free)
            return place_needed(cleared, preemptor, None) is not None

        is_enough = suffice(units)
        if not (is_enough or _needs_other_pods(preemptor)):
            return None
        levels = _levels(sorted(units, key=lambda unit: unit.order))
        low, high = 0, len(levels) - 1
        if not is_enough:
            # The gang may fit if only some units are evicted: the others have the pods that it
            # must be near to, or spread with.
            low = high
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if suffice(levels[middle]) else (middle + 1, high)
        for level in range(low, len(levels)):
            freed = clearing.after(without_overlap(levels[level])).free - clearing.base.free
            search = GangSearch(clearing, rights, preemptor, levels[level], freed)
            victims = self._best_of_regions(search, clearing, preemptor, levels[level])
            if victims is not None:
                return victims
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
        sets: list[VictimSet] = []
        domains = self._sufficient_domains(clearing, preemptor, units)
        for domain in islice(domains, MAX_REGIONS):
            if sets and domain.tier > tier:
                break
            tier = domain.tier
            within = search.best(domain.rows)
            sets += [within] if within is not None else []
        if not sets and not rule.hard:
            return search.best(None)
        return min(sets, key=lambda victims: victims.order, default=None)

    def _sufficient_domains(
        self, clearing: Clearing, preemptor: PendingGang, units: Sequence[EvictionUnit]
    ) -> Iterator[TopologyDomain]:
        """Yield the domains that hold the gang if all units are evicted, the closest first."""
        assert preemptor.network is not None
        listed = without_overlap(units)
        for domain in allowed_domains(self._state.nodes, preemptor, preemptor.network):
            if place_needed(clearing.after(listed), preemptor, domain.rows) is not None:
                yield domain

    def _accept(self, preemptor: PendingGang, chosen: VictimSet) -> PreemptionResult:
        self._chosen_gangs |= {unit.gang.id for unit in chosen.units}
        victims = pods_to_evict(chosen.units)
        self._victims += victims
        if self._ending is not None:
            self._ending.add(victims)
        for pod in victims:
            self.reclaim_state.add_leaving(self._state.usage.queue_of(pod.group), pod)
        self.reclaim_state.add_expected(preemptor.id, preemptor.queue, preemptor.requested)
        within = all(unit.gang.queue == preemptor.queue for unit in chosen.units)
        reason = eviction_reason(preemptor.name, within)
        return PreemptionResult(victims, chosen.placements, reason)

    def _units_of(self, gang: RunningGang) -> list[EvictionUnit]:
        units = self._units.get(gang.id)
        if units is None:
            priority = self._tree.queues[gang.queue].info.priority
            units = self._units[gang.id] = eviction_units(gang, priority, self._now)
        return units

    def _may_be_evicted(self, gang: RunningGang, preemptor: PendingGang) -> bool:
        if gang.queue == preemptor.queue:
            if not self._policy.preempt or gang.priority >= preemptor.priority:
                return False
        elif not self._policy.reclaim or gang.queue not in self._tree.queues:
            return False
        if gang.info is not None and not gang.info.preemptable:
            return False
        if gang.id == preemptor.id or gang.id in self._chosen_gangs:
            return False
        return not (self._was_bound(gang.id) or self._protected.is_protected(gang))

    def _running(self) -> Mapping[str, list[RunningGang]]:
        if self._gangs is None:
            self._gangs = defaultdict(list)
            for _, placed in placed_gangs(self._state):
                if placed.gang is not None:
                    self._gangs[placed.gang.queue].append(placed.gang)
                for pod in placed.leaving:
                    self.reclaim_state.add_leaving(placed.queue, pod)
        return self._gangs


def _needs_other_pods(gang: PendingGang) -> bool:
    """Return whether the eviction of a pod may keep a pod of the gang off a node."""
    rules = [rule for pod in gang.pending if (rule := pod.shape.constraints.inter_pod) is not None]
    return any(
        any(not term.weight for term in rule.affinity) or any(term.hard for term in rule.spread)
        for rule in rules
    )


def _may_preempt(gang: PendingGang) -> bool:
    return all(pod.may_preempt for pod in gang.pending)


def _place_after_endings(
    clearing: Clearing, rights: EvictionRights, preemptor: PendingGang
) -> list[Placement] | None:
    """Return where a gang can start once the ending pods have ended; None: nowhere."""
    if not clearing.ending or not rights.covers_limits(EvictionTally()):
        return None
    nodes = clearing.state.nodes
    if not nodes.storage.limits and not may_fit(nodes, clearing.free_after(()), preemptor, None):
        return None
    return place_needed(clearing.after(()), preemptor, clearing.base.within)


def _levels(units: Sequence[EvictionUnit]) -> list[list[EvictionUnit]]:
    """Return the units up to each priority of broken gangs, in the order of the cost."""
    tiers = sorted({unit.cost.broken_tier for unit in units})
    return [[unit for unit in units if unit.cost.broken_tier <= tier] for tier in tiers]


NO_PRIORITY = float("-inf")
ANY_PRIORITY = float("inf")


@dataclass(slots=True)
class EvictablePlainPods:
    """Finds these pods, for one cycle."""

    state: SchedulerCache
    tree: QueueTree
    policy: EvictionPolicy
    _candidates: list[PodInfo] | None = None

    def priority_bound(self, gang: PendingGang) -> float:
        """Return the priority below which a gang may evict plain pods; -inf: none.

        Gangs with equal bounds may evict the same pods.
        """
        if not self.state.nodes.lasting_pods or not all(pod.may_preempt for pod in gang.pending):
            return NO_PRIORITY
        queue = self.state.usage.queue_of(None)
        if gang.queue == queue:
            return gang.priority if self.policy.preempt else NO_PRIORITY
        reclaims = self.policy.reclaim and self._may_reclaim(gang, queue)
        return ANY_PRIORITY if reclaims else NO_PRIORITY

    def below(self, bound: float) -> Iterable[PodInfo]:
        """Return the plain pods that gangs with this bound may evict."""
        if bound == NO_PRIORITY:
            return ()
        if self._candidates is None:
            lasting = self.state.nodes.lasting_pods.values()
            self._candidates = [pod for pod in lasting if pod.preemptable and is_evictable(pod)]
        return [pod for pod in self._candidates if pod.priority < bound]

    def _may_reclaim(self, gang: PendingGang, other: str) -> bool:
        """Return whether the gang's queue stays within its fair share, and the other exceeds it."""
        own_path, below = self.tree.diverging_paths(gang.queue, other)
        amount = self.tree.request_vector(gang.requested)
        if not below or not all(queue.info.reclaimable for queue in below):
            return False
        if any(queue.claim(amount) is not ShareClaim.WITHIN for queue in own_path):
            return False
        asked = amount > 0
        return all((queue.used > queue.fair_share)[asked].any() for queue in below)
