"""One scheduling cycle: from the cache to bindings, evictions, reservations and reasons.

A cycle serves pending gangs in scheduling order. Each gang is placed tentatively, completely or not
at all. The first gang that stays pending gets a reservation on the nodes where it can start
soonest. Later gangs run only where they leave the reservation untouched, or end before it starts
(backfill). So a stream of small jobs cannot starve a large one, and idle nodes outside the
reservation are used.

Invariants:

- The result depends on the cache and the time only, not on the order in which objects arrived.
- Free resources only shrink during a cycle. Therefore equivalent gangs fail equally, and the
  explanation of the first failure serves all of them.
- Reservations are charged to the scratch allocation like placements, so no gang uses them twice.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.allocations import Allocations
from gangline.scheduler.cycle.diagnosis import PlacementDiagnosis, PlacementFailure, queue_limit
from gangline.scheduler.cycle.extra_pods import ExtraPods
from gangline.scheduler.placement.gang import ReservationPlanner, place_gang, placed_pods
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.backfill import BackfillWindow, earliest_start
from gangline.scheduler.preemption.preempt import (
    EvictionPolicy,
    PreemptionEvaluator,
    PreemptionResult,
)
from gangline.scheduler.preemption.reservations import (
    PreemptorReservations,
    RestartReservation,
    restart_reservations,
    valid_reservations,
)
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.fair_share import NamespaceShares
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.queueing.order import QueueEntry, SchedulingOrder
from gangline.scheduler.queueing.queue_tree import QueueStructure, QueueTree, Vector
from gangline.scheduler.types.types import (
    CycleResult,
    GroupKey,
    NodeName,
    PendingReason,
    PodEviction,
    PodKey,
    QueueInfo,
    Reservation,
)

DEFAULT_POLICY = EvictionPolicy()


def run_cycle(
    state: SchedulerCache, now: float, policy: EvictionPolicy = DEFAULT_POLICY
) -> CycleResult:
    """Run one cycle: return the gangs to bind now, and why each other gang is pending.

    Args:
        state: the cache; the cycle does not change it.
        now: the time in seconds since the epoch, on the clock of the cache.
        policy: which evictions are allowed, and which shares order gangs.
    """
    units, verdicts = pending_gangs(state, now)
    if not units:
        # Reservations of other gangs matter only to a gang that could use their nodes.
        return CycleResult(pending_reasons=tuple(verdicts))
    claims = valid_reservations(state, units, now)
    current = _Cycle(state, [claims.with_reserved_nodes(unit) for unit in units], now, policy)
    current.add_preemptor_reservations(claims, units)
    for held in restart_reservations(state, now):
        current.add_restart_reservation(held)
    current.run()
    return CycleResult(
        bindings=tuple(current.allocations.bindings),
        pending_reasons=(*verdicts, *current.pending_reasons),
        placed=frozenset(current.placed),
        evictions=tuple(current.evictions),
        reservations=current.reservations,
    )


class _Cycle:
    """The state of one cycle: what it has decided so far."""

    def __init__(
        self,
        state: SchedulerCache,
        units: Sequence[PendingGang],
        now: float,
        policy: EvictionPolicy,
    ) -> None:
        self.state = state
        self.now = now
        self.scratch = ScratchAllocation(state.nodes)
        known = state.queue_structure
        self.tree = QueueTree(
            state.queues,
            state.nodes,
            state.usage,
            state.pending_usage,
            state.schedulable_capacity(),
            known if isinstance(known, QueueStructure) else None,
        )
        state.queue_structure = self.tree.structure
        fairness = policy.fairness
        shares = NamespaceShares(state, self.tree) if fairness.namespaces else None
        self.allocations = Allocations(state, self.tree, shares)
        share_of = self.allocations.share_of if fairness.gangs else None
        self.order = SchedulingOrder(units, self.tree, share_of, shares)
        self.pending_reasons: list[PendingReason] = []
        self.placed: set[GroupKey] = set()
        self.evictions: list[PodEviction] = []
        self.reservations: dict[str, Reservation] = {}
        self._planner = ReservationPlanner(state.nodes)
        self._diagnosis = PlacementDiagnosis(state, self.scratch, self._planner)
        self._pending_counts: Counter[str] = Counter()
        """Gangs of each queue that were served and stay pending: they are before the next one."""
        self._preemption = PreemptionEvaluator(state, self.tree, policy, now)
        self._preemption_failed: set[object] = set()
        """Equivalence keys for which no victims were found."""
        self._has_reservation = False
        """True once the first pending gang of the cycle has a reservation."""
        self._window = BackfillWindow()
        self._failures: dict[object, PlacementFailure] = {}
        """Failures by equivalence key."""
        self._unschedulable: dict[tuple[object, str, int], PlacementFailure] = {}
        """Failures by (equivalence key, queue, priority) of gangs for which neither placement nor
        preemption nor a reservation is possible in this cycle. Equivalent gangs fail without being
        tried.
        """
        self._reserved: dict[str, list[Placement]] = {}
        """Reserved placements by the name of their gang."""
        self._restart_placements: dict[str, dict[PodKey, Placement]] = {}
        """Restart reservations by gang and pod: a gang may use its own."""
        self._preemptor_placements: Mapping[str, list[Placement]] = {}
        self._head_of_line: dict[str, str] = {}
        """Head of line of each queue whose pending gangs block later ones."""
        self._extra_pods = ExtraPods(self.scratch, self.tree, self.order, self.allocations)

    def add_preemptor_reservations(
        self, claims: "PreemptorReservations", units: Iterable[PendingGang]
    ) -> None:
        """Reserve the resources that earlier evictions freed, for the gangs that caused them."""
        self._preemptor_placements = claims.placements
        for name, placements in claims.placements.items():
            self._reserve(placements, name)
        for unit in units:
            if unit.name in claims.placements:
                self._preemption.reclaim_state.add_expected(unit.name, unit.queue, unit.requested)

    def add_restart_reservation(self, held: RestartReservation) -> None:
        """Reserve the node of a lost or restarting member, unless the gang has a preemptor
        reservation.
        """
        if held.group not in self._preemptor_placements and self.scratch.has_capacity(
            held.placement
        ):
            self._reserve([held.placement], held.group)
            self._restart_placements.setdefault(held.group, {})[held.pod] = held.placement

    def run(self) -> None:
        while (turn := self.order.pop()) is not None:
            if turn.is_extra:
                self.pending_reasons += self._extra_pods.serve(turn)
            else:
                self._schedule(turn.gang)

    def _reserve(self, placements: list[Placement], name: str) -> None:
        if placements:
            self.scratch.reserve(placements)
            self._reserved[name] = self._reserved.get(name, []) + placements

    def _schedule(self, unit: PendingGang) -> None:
        """Place a gang, or record why it is pending.

        A gang with a reservation of its own is tried with that reservation released. If it stays
        pending, the reservation is charged again, so that later gangs cannot use it.
        """
        known = self._known_failure(unit) if self._unschedulable else None
        if (
            known is not None
            and unit.name not in self._preemptor_placements
            and unit.name not in self._restart_placements
        ):
            # Nothing is left but backfill: its run time is not part of the equivalence key.
            if not self._backfill(unit):
                self._add_pending_reason(
                    unit, messages.NOT_ENOUGH_RESOURCES, known.gang_message, known.pod_message
                )
            return
        amount = self.tree.request_vector(unit.requested)
        if self._blocked_by_queue(unit, amount):
            return
        own = self._restart_placements.get(unit.name, {})
        claim = self._preemptor_placements.get(unit.name, [])
        if own or claim:
            self.scratch.release(self._reserved.pop(unit.name, []))
        placed = self._place_or_explain(unit)
        if own:
            settled = placed or unit.name in self.reservations
            waiting = {pod.key for pod in unit.pending if settled}
            self._reserve([kept for name, kept in own.items() if name not in waiting], unit.name)
        if claim and not placed:
            self._reserve(claim, unit.name)
            self.reservations[unit.name] = self.state.reservations[unit.name]

    def _known_failure(self, unit: PendingGang) -> PlacementFailure | None:
        """Return the failure of an equivalent gang for which nothing more is possible; None:
        unknown.
        """
        return self._unschedulable.get((self._equivalence_key(unit), unit.queue, unit.priority))

    def _blocked_by_queue(self, unit: PendingGang, amount: Vector) -> bool:
        """Record the reason if the limit or the FIFO order of the queue blocks a gang."""
        first = self._head_of_line.get(unit.queue)
        if first is not None and not unit.is_urgent:
            self._add_pending_reason(
                unit, messages.QUEUE_LIMIT, messages.fifo_message(unit.queue, first)
            )
            return True
        account = self.tree.blocking_queue(unit.queue, amount)
        if account is None:
            return False
        limit = queue_limit(self.tree, account, amount)
        users = self._diagnosis.largest_users(account, next(iter(limit.limit)))
        self._add_pending_reason(
            unit, messages.QUEUE_LIMIT, messages.queue_limit_message(limit, users)
        )
        if not account.reserved.any() and all(
            limit.requested[name] <= most for name, most in limit.limit.items()
        ):
            # Later gangs of the queue must not use what ends before the first can start.
            self.tree.reserve(unit.queue, amount)
        self._record_head_of_line(unit)
        return True

    def _record_head_of_line(self, unit: PendingGang) -> None:
        if self.state.queues.get(unit.queue, _ANY_QUEUE).fifo:
            self._head_of_line.setdefault(unit.queue, unit.name)

    def _place_or_explain(self, unit: PendingGang) -> bool:
        """Place a gang and return True, or record why it is pending."""
        likeness = self._equivalence_key(unit)
        failure = self._failures.get(likeness)
        if failure is None:
            mark = self.scratch.mark()
            # The minimum comes first, alone: the scheduling order decides on extra pods.
            for count in sorted({unit.needed, len(unit.pending)}):
                unfit = place_gang(self.scratch, unit, unit.pending[:count])
                placements = self.scratch.since(mark)
                if unit.satisfied_by(placed_pods(placements)):
                    self._accept(unit, placements)
                    return True
                if count < len(unit.pending):
                    self.scratch.rollback(mark)
            failure = self._diagnosis.explain_failure(unit, mark, unfit[0], self._reserved)
            self._failures[likeness] = failure
        if self._backfill(unit):
            return True
        outlook = self._preempt_or_reserve(unit)
        if self._has_reservation and not outlook and self.tree.never_blocks(unit.queue):
            self._unschedulable[likeness, unit.queue, unit.priority] = failure
        shown = (failure.if_preempting if outlook == messages.PREEMPTING else None) or failure
        gang, pod = (
            messages.clip_message(text, outlook) for text in (shown.gang_message, shown.pod_message)
        )
        self._add_pending_reason(unit, messages.NOT_ENOUGH_RESOURCES, gang, pod)
        self._record_head_of_line(unit)
        return False

    def _equivalence_key(self, unit: PendingGang) -> object:
        """Return the key by which gangs fit equally. Inter-pod rules depend on labels: then a gang
        is unique.
        """
        alone = unit.has_inter_pod_rules or self.state.nodes.anti_affinity_owners
        return (unit.equivalence_key, unit.name) if alone else unit.equivalence_key

    def _preempt_or_reserve(self, unit: PendingGang) -> str:
        """Evict pods for a gang if that is allowed and sufficient; else reserve nodes for the first
        one.

        Returns:
            The consequence for the gang, as a sentence of its message; empty: none.
        """
        if unit.name in self._preemptor_placements:
            return messages.PREEMPTING
        likes = (self._equivalence_key(unit), unit.queue, unit.priority)
        if likes not in self._preemption_failed:
            clearance = self._preemption.find_victims(self.scratch, unit)
            if clearance is not None:
                self._evict(unit, clearance)
                return messages.PREEMPTING
            self._preemption_failed.add(likes)
        # Only the first pending gang of a cycle gets a reservation. More of them would delay each
        # other, and leave fewer nodes for backfill.
        if not self._has_reservation:
            plan = self._planner.plan(unit, self.state.reservations.get(unit.name))
            if plan is not None:
                self._has_reservation = True
                self._add_reservation(unit, plan)
                start = earliest_start(self.state, self.scratch, plan, self.now)
                self._window = BackfillWindow(tuple(plan), start)
                return messages.reservation_message(self._diagnosis.summarize_plan(unit, plan))
        return ""

    def _backfill(self, unit: PendingGang) -> bool:
        """Backfill: place a gang on reserved nodes if it ends before the reservation starts."""
        window = self._window
        if not window.fits_before_start(unit, self.now):
            return False
        request = self.tree.request_vector(unit.requested)
        if self.tree.blocking_queue(unit.queue, request) is not None:
            return False
        placed = window.place(self.scratch, unit)
        if placed:
            self._accept(unit, placed)
        return bool(placed)

    def _evict(self, unit: PendingGang, clearance: PreemptionResult) -> None:
        self._add_reservation(unit, list(clearance.placements), cleared=True)
        self.evictions += [
            PodEviction(
                pod.key,
                pod.uid,
                pod.node or NodeName(""),
                pod.group,
                unit.name,
                clearance.reason,
            )
            for pod in clearance.victims
        ]

    def _accept(self, unit: PendingGang, placements: list[Placement]) -> None:
        given = self.allocations.bind(unit, placements)
        self._preemption.reclaim_state.remove_expected(unit.name)
        if unit.group is not None:
            self.placed.add(unit.group)
        if len(given) < len(unit.pending):
            left = [pod for pod in unit.pending if pod.key not in given]
            share = self.allocations.share_of(unit)
            self.order.requeue(QueueEntry(unit, True, deque(left), share=share))

    def _add_reservation(
        self, unit: PendingGang, plan: list[Placement], cleared: bool = False
    ) -> None:
        """Reserve the planned nodes for a gang. A new plan keeps the age of the reservation it
        replaces.
        """
        self._reserve(plan, unit.name)
        known = self.state.reservations.get(unit.name)
        places = tuple((pod.key, self.state.nodes.name_of(p.row)) for p in plan for pod in p.pods)
        places = tuple(sorted(places))
        since = known.created_at if known is not None and not cleared else self.now
        self.reservations[unit.name] = Reservation(places, cleared, since)

    def _add_pending_reason(
        self, unit: PendingGang, reason: str, gang: str, pod: str | None = None
    ) -> None:
        message = gang if pod is None else pod
        if unit.group is not None:
            standing = messages.position_message(
                unit.queue, self._pending_counts[unit.queue], unit.pending_since
            )
            gang = messages.clip_message(gang, standing)
        self._pending_counts[unit.queue] += 1
        self.pending_reasons.append(
            PendingReason(
                reason, gang, tuple([(key, message) for key in unit.pod_keys]), unit.group
            )
        )


_ANY_QUEUE = QueueInfo("")
