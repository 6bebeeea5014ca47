"""One scheduling cycle: from the cache to bindings, evictions, reservations and reasons.

1. Collect the pending gangs. Gangs that cannot be tried (no queue, missing pods) get their reason.
   Of the gangs whose pods must not be created yet, as many as the cluster holds are admitted.
2. Charge the reservations of earlier cycles: of preemptors, of members that are to be recreated,
   and of pods that join running gangs.
3. Serve the gangs in scheduling order. Each is placed tentatively, completely or not at all; else
   victims are searched for it. The first gang of each queue that stays pending, though the fair
   share of the queue covers it, gets a reservation on the nodes where it can start soonest, and so
   does the first of all queues. Later gangs run only where they leave these untouched, or end
   before they start (backfill). So a stream of small jobs cannot starve a large one, in its own
   queue or in others, and idle nodes outside the reservations are used.
4. Find the terminating pods that the reservations of the result need.

Invariants:

- The result depends on the cache and the time only, not on the order in which objects arrived.
- Free resources only shrink during a cycle. Therefore equivalent gangs fail equally, and the
  explanation of the first failure serves all of them. Where a gang leaves a reservation that it
  does not need any more, or displaces one, the failures so far are forgotten.
- Reservations are charged to the scratch allocation like placements, so no gang uses them twice.
- All state is local: a cycle that fails has decided nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.active_reservations import (
    ActiveReservation,
    ActiveReservations,
    awaited_pods,
)
from gangline.scheduler.cycle.allocations import Allocations, ExtraPods
from gangline.scheduler.cycle.diagnosis import (
    PendingReasons,
    PlacementDiagnosis,
    PlacementFailure,
    queue_limit,
)
from gangline.scheduler.placement.gang import (
    place_gang,
    place_minimum,
    placed_pods,
)
from gangline.scheduler.placement.reservation_planner import ReservationPlanner
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.preempt import (
    EvictablePlainPods,
    EvictionPolicy,
    PreemptionEvaluator,
    PreemptionResult,
)
from gangline.scheduler.preemption.reservations import (
    BackfillWindow,
    PreemptorReservations,
    RestartReservation,
    earliest_start,
    former_plans,
    joining_reservations,
    place_on_reserved,
    restart_reservations,
    valid_reservations,
)
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs, with_allowed_pods_first
from gangline.scheduler.queueing.order import NamespaceShares, QueueEntry, SchedulingOrder
from gangline.scheduler.queueing.overcommit import AdmissionResult, admit_gangs
from gangline.scheduler.queueing.queue_tree import QueueTree, ShareClaim, Vector
from gangline.scheduler.types import (
    ClaimAllocation,
    CycleResult,
    GroupKey,
    NodeName,
    PodEviction,
    PodInfo,
    PodKey,
    QueueInfo,
    Reservation,
)

DEFAULT_POLICY = EvictionPolicy()


def run_cycle(
    state: SchedulerCache,
    now: float,
    policy: EvictionPolicy = DEFAULT_POLICY,
    phase_ended: Callable[[str], None] = lambda _: None,
    *,
    explain: bool = True,
) -> CycleResult:
    """Run one cycle: return the gangs to bind now, and why each other gang is pending.

    Args:
        state: the cache; the cycle does not change it.
        now: the time in seconds since the epoch, on the clock of the cache.
        policy: which evictions are allowed, and which shares order gangs.
        phase_ended: called with ``collect``, ``prepare`` and ``place`` when these phases end.
        explain: whether the pending reasons are to have messages; the decisions are the same.
    """
    gangs, refused = pending_gangs(state, now, policy.admission.waiting_time_s)  # 1.
    admission = AdmissionResult()
    if state.unadmitted:
        admission = admit_gangs(state, policy.admission, policy.preempt, now)
        refused += admission.refused
    phase_ended("collect")
    if not gangs:
        # Reservations of other gangs matter only to a gang that could use their nodes.
        return CycleResult(pending_reasons=tuple(refused), admitted=admission.admitted)
    preemptors = valid_reservations(state, gangs, now)
    nominated = [preemptors.with_nominated_nodes(gang) for gang in gangs]
    current = _Cycle(state, nominated, now, policy, explain)
    # 2. The order matters: victims of preemptors were evicted already, so their reservations always
    # hold. Members return to nodes that these leave free. Joining pods have no node yet and take
    # what is left; a gang has at most one of the first two kinds.
    current.charge_preemptor_reservations(preemptors, gangs)
    for reserved in restart_reservations(state, now):
        current.charge_restart_reservation(reserved)
    current.charge_joining_pods()
    phase_ended("prepare")
    current.serve_all()  # 3.
    phase_ended("place")
    return CycleResult(
        bindings=tuple(current.allocations.bindings),
        pending_reasons=(*refused, *current.pending.reasons),
        admitted=admission.admitted,
        placed=frozenset(current.placed),
        evictions=tuple(current.evictions),
        reservations=current.reservations,
        volumes=current.chosen_volumes(),
        devices=current.chosen_devices(),
        displaced=frozenset(current.preemptors.displaced),
        awaited=current.awaited_pods(),  # 4.
    )


class _Cycle:
    """The state of one cycle: what it has decided so far.

    Between two gangs the scratch allocation and the queues hold exactly: the allocations of this
    cycle, the reservations of gangs that were not served yet, and those of gangs that stay pending.
    """

    def __init__(
        self,
        state: SchedulerCache,
        gangs: Sequence[PendingGang],
        now: float,
        policy: EvictionPolicy,
        explain: bool,
    ) -> None:
        self.state = state
        self.now = now
        self.scratch = ScratchAllocation(state.nodes)
        asking = {gang.queue for gang in gangs}
        asking.update(state.groups[key].queue for key in state.joining_groups)
        self.tree = QueueTree.of(state, asking)
        state.queue_structure = self.tree.structure
        fairness = policy.fairness
        shares = NamespaceShares(state, self.tree) if fairness.namespaces else None
        self.allocations = Allocations(state, self.tree, shares)
        share_of = self.allocations.share_of if fairness.gangs else None
        reserved_since = {
            gang: reservation.created_at
            for gang, reservation in state.reservations.items()
            if not reservation.preempting
        }
        self.order = SchedulingOrder(gangs, self.tree, share_of, shares, reserved_since)
        self.placed: set[GroupKey] = set()
        self.evictions: list[PodEviction] = []
        self.reservations: dict[str, Reservation] = {}
        evictable = EvictablePlainPods(state, self.tree, policy)
        self._planner = ReservationPlanner(state.nodes, evictable)
        self._diagnosis = PlacementDiagnosis(state, self.scratch, self._planner)
        self._preemption = PreemptionEvaluator(
            state, self.tree, policy, now, self.allocations.has_bound
        )
        self._preemption_failed: set[object] = set()
        """Equivalence keys for which no victims were found."""
        self._windows: dict[str, BackfillWindow] = {}
        """Reservations of first pending gangs, by queue; without nodes, they wait for these."""
        self._failures: dict[object, PlacementFailure] = {}
        """Failures by equivalence key."""
        self._unschedulable: dict[tuple[object, str, int], PlacementFailure] = {}
        """Failures by (equivalence key, queue, priority) of gangs for which neither placement nor
        preemption nor a reservation is possible in this cycle. Equivalent gangs fail without being
        tried.
        """
        self._reserved: dict[str, list[Placement]] = {}
        """Reserved placements by their gang."""
        self._former_plans = former_plans(state, gangs)
        """Placements that first pending gangs which were not served yet had planned before."""
        self._has_charged_plans = False
        """True while the former plans are charged."""
        self._restart_placements: dict[str, dict[PodKey, Placement]] = {}
        """Restart reservations by gang and pod: a gang may use its own."""
        self._joining_amounts: dict[str, Vector] = {}
        """Amounts that are reserved in queues for pods that join running gangs, by gang."""
        self.preemptors = ActiveReservations(
            self.scratch, self.tree, self._preemption, self._reserved
        )
        """Reservations of preemptors from earlier cycles."""
        self.pending = PendingReasons(self.preemptors.displaced, explain)
        self._displaces = False
        """True if reservations are released for the gang that is served now."""
        self._owners: dict[str, PendingGang] = {}
        """The gangs of ``reservations``."""
        self._head_of_line: dict[str, str] = {}
        """Head of line of each queue whose pending gangs block later ones."""
        self._extra_pods = ExtraPods(
            self.scratch, self.tree, self.order, self.allocations, self._preemption.evicts_from
        )

    def charge_preemptor_reservations(
        self, preemptors: "PreemptorReservations", gangs: Iterable[PendingGang]
    ) -> None:
        """Reserve the resources that earlier evictions freed, for the gangs that caused them."""
        for gang in gangs:
            if gang.id in preemptors.placements:
                self.preemptors.add(ActiveReservation(gang, preemptors.placements[gang.id]))

    def chosen_volumes(self) -> dict[str, str]:
        """Return the volumes of bound pods: later gangs may have changed earlier choices."""
        chosen = self.scratch.volumes.chosen_volumes()
        pods = (self.state.pods[b.pod] for b in self.allocations.bindings) if chosen else ()
        return {key: chosen[key] for pod in pods for key in pod.claims if key in chosen}

    def chosen_devices(self) -> dict[str, ClaimAllocation]:
        """Return the devices of bound pods: later gangs may have changed earlier choices."""
        chosen = self.scratch.devices.chosen_devices()
        pods = (self.state.pods[b.pod] for b in self.allocations.bindings) if chosen else ()
        return {key: chosen[key] for pod in pods for key in pod.device_claims if key in chosen}

    def awaited_pods(self) -> dict[PodKey, PodEviction]:
        """Return the terminating pods that the preempting reservations of the result need."""
        if not any(reservation.preempting for reservation in self.reservations.values()):
            return {}
        owners = [
            (self._owners[name], reservation, self._reserved.get(name, []))
            for name, reservation in self.reservations.items()
        ]
        victims = [eviction.pod for eviction in self.evictions]
        return awaited_pods(self.state, self.scratch, owners, victims)

    def charge_restart_reservation(self, reserved: RestartReservation) -> None:
        """Reserve the node of a lost or restarting member, unless the gang has a preemptor
        reservation.
        """
        if reserved.group not in self.preemptors and self.scratch.has_capacity(reserved.placement):
            self._reserve([reserved.placement], reserved.group)
            self._restart_placements.setdefault(reserved.group, {})[reserved.pod] = (
                reserved.placement
            )

    def charge_joining_pods(self) -> None:
        """Reserve nodes, and shares of queues, for pods that join running gangs."""
        if not self.state.joining_groups:
            return
        for gang, placements in joining_reservations(self.state, self.scratch):
            if gang.id in self.preemptors or gang.queue not in self.state.queues:
                continue
            own = self._restart_placements.setdefault(gang.id, {})
            for placement in placements:
                for pod in placement.pods:
                    if pod.key not in own:
                        own[pod.key] = Placement((pod,), placement.row, placement.demand)
                        self._reserve([own[pod.key]], gang.id)
            amount = self.tree.vector(messages.total_request(gang.pending))
            self.tree.reserve(gang.queue, amount)
            self._joining_amounts[gang.id] = amount

    def serve_all(self) -> None:
        while (entry := self.order.pop()) is not None:
            if self._former_plans:
                self._protect_former_plans(entry)
            if entry.is_extra:
                self.pending.reasons += self._extra_pods.serve(entry)
            else:
                self._schedule(entry.gang)
                self._fail_equivalent(entry.gang)

    def _protect_former_plans(self, entry: QueueEntry) -> None:
        """Charge the former plans of other gangs while the owner of such a plan is served.

        A gang that comes before all of them, such as an urgent one, may use their nodes. Owners
        leave each other's nodes alone: else each start of one would delay the others.
        """
        own = None if entry.is_extra else self._former_plans.pop(entry.gang.id, None)
        if self._has_charged_plans and own is not None:
            self.scratch.release(self._reserved.pop(entry.gang.id))
        elif self._has_charged_plans or own is not None:
            self._has_charged_plans = own is not None
            for name, placements in self._former_plans.items():
                if self._has_charged_plans:
                    self._reserve(placements, name)
                else:
                    self.scratch.release(self._reserved.pop(name))
        else:
            return
        self._forget_failures()

    def _reserve(self, placements: list[Placement], name: str) -> None:
        if placements:
            self.scratch.reserve(placements)
            self._reserved[name] = self._reserved.get(name, []) + placements

    def _schedule(self, gang: PendingGang) -> None:
        """Place a gang, or record why it is pending.

        1. Skip a gang that certainly fails: an equivalent one has failed, or its pods are evicted.
        2. Release what is reserved for the gang itself: it may use that.
        3. Release the reservations that yield to the gang, unless it starts on its reserved nodes.
        4. Place it, or explain why it is pending.
        5. Charge again what it has not used, so that later gangs cannot use it either.
        """
        if self._is_skipped(gang):
            return
        if self._is_limited(gang):
            queue = gang.queue
            gang = with_allowed_pods_first(
                gang, lambda request: self.tree.blocking_request(queue, request) is None
            )
        amount = self.tree.request_vector(gang.requested)
        # 2. From here to step 5 the scratch allocation lacks reservations: no early return.
        reservation = self.preemptors.take(gang.id)
        returning = self._restart_placements.get(gang.id, {})
        if returning:
            self.scratch.release(self._reserved.pop(gang.id, []))
        joining = self._joining_amounts.pop(gang.id, None)
        if joining is not None:
            self.tree.reserve(gang.queue, -joining)
        # 3.
        placed = reservation is not None and self._place_as_reserved(gang, reservation)
        released = () if placed else self._release_yielding(gang, amount, reservation)
        # 4. While reservations are released more is free than for the gangs that have failed:
        # their failures say nothing, and a failure now says nothing about later gangs.
        failures, self._displaces = self._failures, bool(released)
        if released:
            self._failures = {}
        if not placed and not self._blocked_by_queue(gang, amount, reserves=not released):
            placed = self._place_or_explain(gang)
        self._failures = failures
        # 5. Pods that are placed now, or have a new reservation, do not return to their nodes.
        if returning:
            settled = placed or gang.id in self.reservations
            pending = {pod.key for pod in gang.pending if settled}
            self._reserve([p for key, p in returning.items() if key not in pending], gang.id)
        if joining is not None and not placed:
            self.tree.reserve(gang.queue, joining)
        if released:
            self._settle_released(gang, released, placed)
        if reservation is not None and placed:
            # The gang may have started elsewhere: then its reserved nodes are free.
            self._forget_failures()
        elif reservation is not None:
            self.preemptors.charge(reservation)
            self.reservations[gang.id] = self.state.reservations[gang.id]
            self._owners[gang.id] = gang

    def _is_skipped(self, gang: PendingGang) -> bool:
        """Handle a gang for which nothing but backfill is possible; return whether it is one."""
        key = (self._equivalence_key(gang), gang.queue, gang.priority)
        failure = self._unschedulable.get(key) if self._unschedulable else None
        has_own = gang.id in self.preemptors or gang.id in self._restart_placements
        if failure is not None and not has_own and not self._is_limited(gang):
            # The run time is not part of the equivalence key: the gang may backfill nevertheless.
            if not self._backfill(gang):
                self.pending.add(
                    gang, messages.NOT_ENOUGH_RESOURCES, failure.gang_message, failure.pod_message
                )
            return True
        if self._preemption.evicts_from(gang.id):
            self.pending.add(gang, messages.NOT_ENOUGH_RESOURCES, messages.EVICTED)
            return True
        return False

    def _fail_equivalent(self, gang: PendingGang) -> None:
        """Fail the next gangs of the queue if they are equivalent to one that has failed for good.

        Their turn would come after gangs of other queues, but these change nothing for them:
        nothing can be released any more in this cycle, and no ancestor of the queue has a limit.
        """
        key = (self._equivalence_key(gang), gang.queue, gang.priority)
        failure = self._unschedulable.get(key) if self._unschedulable else None
        if failure is None or self._former_plans or self.preemptors.has_unserved:
            return
        _, *above = self.tree.queues[gang.queue].path()
        if self._is_limited(gang) or any(queue.has_limit for queue in above):
            return

        def is_equivalent(other: PendingGang) -> bool:
            return (
                (self._equivalence_key(other), other.priority) == (key[0], gang.priority)
                and other.requested == gang.requested
                and other.max_run_time_s <= 0
                and other.id not in self._restart_placements
            )

        for other in self.order.pop_while(gang.queue, is_equivalent):
            self.pending.add(
                other, messages.NOT_ENOUGH_RESOURCES, failure.gang_message, failure.pod_message
            )

    def _is_limited(self, gang: PendingGang) -> bool:
        """Return whether the limit of its queue blocks a gang."""
        return self.tree.blocking_request(gang.queue, gang.requested) is not None

    def _release_yielding(
        self, gang: PendingGang, amount: Vector, own: ActiveReservation | None
    ) -> Sequence[ActiveReservation]:
        """Release the reservations of lower priority that a gang needs; return them.

        It is tried to start the gang now, then to let it wait for pods that are ending; each first
        without them. A gang with a reservation of its own waits for that instead.
        """
        key = (self._equivalence_key(gang), gang.queue, gang.priority)
        if own is None and key in self._preemption_failed:
            return ()
        yielding = self.preemptors.yielding_to(gang)
        if not yielding:
            return ()

        def starts_now() -> bool:
            if self.tree.blocking_queue(gang.queue, amount) is not None:
                return False
            mark = self.scratch.mark()
            place_gang(self.scratch, gang, gang.pending[: gang.needed])
            starts = gang.satisfied_by(placed_pods(self.scratch.since(mark)))
            self.scratch.rollback(mark)
            return starts

        def starts_after_endings() -> bool:
            return self._preemption.fits_after_endings(self.scratch, gang)

        if own is not None:
            return self.preemptors.release_for(yielding, [starts_now])
        return self.preemptors.release_for(yielding, [starts_now, starts_after_endings])

    def _settle_released(
        self, gang: PendingGang, released: Sequence[ActiveReservation], placed: bool
    ) -> None:
        """Charge the released reservations again, except those that the gang has displaced."""
        new = self.reservations.get(gang.id)
        if not placed and (new is None or not new.preempting):
            self.preemptors.restore(released)
        elif self.preemptors.displace(released, gang):
            self._forget_failures()

    def _forget_failures(self) -> None:
        """Forget which gangs have failed: resources became free."""
        self._failures = {}
        self._unschedulable.clear()
        self._preemption_failed.clear()

    def _blocked_by_queue(self, gang: PendingGang, amount: Vector, reserves: bool) -> bool:
        """Record the reason if the limit or the FIFO order of the queue blocks a gang.

        Args:
            reserves: whether the limit may be reserved for it: not while a preemptor has a
                reservation within it, whose victims were evicted already.
        """
        first = self._head_of_line.get(gang.queue)
        if first is not None and not (gang.is_urgent or gang.id in self.preemptors):
            self.pending.add(gang, messages.QUEUE_LIMIT, messages.fifo_message(gang.queue, first))
            return True
        queue = self.tree.blocking_queue(gang.queue, amount)
        if queue is None:
            return False
        limit = queue_limit(self.tree, queue, amount)
        consequence = self._preempt(gang)
        message = ""
        if self.pending.explains:
            users = self._diagnosis.largest_users(queue, next(iter(limit.limit)))
            message = messages.clip_message(messages.queue_limit_message(limit, users), consequence)
        self.pending.add(gang, messages.QUEUE_LIMIT, message)
        if (
            not consequence
            and reserves
            and not queue.reserved.any()
            and all(limit.requested[name] <= most for name, most in limit.limit.items())
        ):
            # Later gangs of the queue must not use what ends before the first can start.
            self.tree.reserve(gang.queue, amount)
        self._record_head_of_line(gang)
        return True

    def _record_head_of_line(self, gang: PendingGang) -> None:
        if self.state.queues.get(gang.queue, _ANY_QUEUE).fifo:
            self._head_of_line.setdefault(gang.queue, gang.name)

    def _place_as_reserved(self, gang: PendingGang, reservation: ActiveReservation) -> bool:
        """Place a preemptor on its reserved nodes, also where first pending gangs have planned
        to start later; return whether it is placed.
        """
        planned = self._planned()
        amount = self.tree.request_vector(gang.requested)
        if not planned or self.tree.blocking_queue(gang.queue, amount) is not None:
            return False
        self.scratch.release(planned)
        mark = self.scratch.mark()
        for placement in reservation.placements:
            for pod in placement.pods:
                self.scratch.place_on_row(pod, placement.row)
        placed = gang.satisfied_by(placed_pods(self.scratch.since(mark)))
        if not placed:
            self.scratch.rollback(mark)
        self.scratch.reserve(planned)
        return placed and self._accept(gang, mark)

    def _place_or_explain(self, gang: PendingGang) -> bool:
        """Place a gang and return True, or record why it is pending."""
        key = self._equivalence_key(gang)
        failure = self._failures.get(key)
        if failure is None:
            mark = self.scratch.mark()
            # The minimum only: the scheduling order decides on extra pods.
            unplaced = place_minimum(self.scratch, gang)
            if not unplaced:
                request = messages.total_request(placed_pods(self.scratch.since(mark)))
                if self._accept(gang, mark):
                    return True
                # Others than the first pods were placed, and they request more.
                self._blocked_by_queue(gang, self.tree.vector(request), reserves=False)
                return False
            failure = self._explain_failure(gang, mark, unplaced[0])
            self._failures[key] = failure
        if self._backfill(gang):
            return True
        consequence = self._preempt(gang) or self._reserve_for_first(gang)
        is_fifo = self.state.queues.get(gang.queue, _ANY_QUEUE).fifo
        if self._windows and not (consequence or is_fifo or self._displaces):
            self._unschedulable[key, gang.queue, gang.priority] = failure
        shown = (failure.if_preempting if consequence == messages.PREEMPTING else None) or failure
        texts = [
            messages.clip_message(t, consequence) for t in (shown.gang_message, shown.pod_message)
        ]
        self.pending.add(gang, messages.NOT_ENOUGH_RESOURCES, *texts)
        self._record_head_of_line(gang)
        return False

    def _explain_failure(self, gang: PendingGang, mark: int, unfit: PodInfo) -> PlacementFailure:
        """Roll the allocation back to ``mark``, and return why the gang is pending."""
        if self.pending.explains:
            return self._diagnosis.explain_failure(gang, mark, unfit, self._reserved)
        self.scratch.rollback(mark)
        return PlacementFailure("", "")

    def _equivalence_key(self, gang: PendingGang) -> object:
        """Return the key by which gangs fit equally. Inter-pod rules depend on labels: then a gang
        is unique.
        """
        is_unique = gang.has_inter_pod_rules or self.state.nodes.anti_affinity_owners
        return (gang.equivalence_key, gang.id) if is_unique else gang.equivalence_key

    def _reserve_for_first(self, gang: PendingGang) -> str:
        """Reserve nodes for the first pending gang of the cycle, and for the first one of each
        queue that is entitled to its request.

        More reservations of one queue would delay each other, and leave fewer nodes for backfill.
        Without nodes, because other reservations need them or enough were planned in this cycle,
        the gang keeps its position: it is served before those that wait since later.
        """
        if gang.queue in self._windows:
            return ""
        amount = self.tree.request_vector(gang.requested)
        claim = self.tree.request_claim(gang.queue, gang.requested)
        is_entitled = claim is not ShareClaim.BORROWS
        if (self._windows and not is_entitled) or not self._planner.is_possible(gang):
            return ""
        plan, start = None, 0.0
        if self._may_hold_nodes(amount):
            beside = [*self._planned(), *self._charged_plans()]
            plan = self._planner.plan(gang, self.state.reservations.get(gang.id), beside)
        if plan is None and not is_entitled:
            return ""
        self._add_reservation(gang, plan or [])
        if plan:
            start = earliest_start(self.state, self.scratch, plan, self.now)
        self._windows[gang.queue] = BackfillWindow(tuple(plan or ()), start)
        self.tree.promise(gang.queue, amount)
        if not plan:
            return ""
        summary = self._diagnosis.summarize_plan(gang, plan)
        return messages.reservation_message(summary, start if start > self.now else 0.0)

    def _may_hold_nodes(self, amount: Vector) -> bool:
        """Return whether a further reservation may keep nodes from others while they drain."""
        if not self._windows:
            return True
        if len(self._windows) >= MAX_RESERVATIONS:
            return False
        reserved = amount
        for name, reservation in self.reservations.items():
            if reservation.nodes and not reservation.preempting:
                request = self._owners[name].requested
                reserved = reserved + self.tree.request_vector(request)
        over = reserved > self.tree.total * MAX_RESERVED_PART
        return not bool(over[amount > 0].any())

    def _planned(self) -> list[Placement]:
        """Return the reserved placements of first pending gangs."""
        return [placement for window in self._windows.values() for placement in window.plan]

    def _charged_plans(self) -> list[Placement]:
        plans = self._former_plans.values() if self._has_charged_plans else ()
        return [placement for plan in plans for placement in plan]

    def _preempt(self, gang: PendingGang) -> str:
        """Evict pods for a gang if that is allowed and sufficient.

        Returns:
            The consequence for the gang, as a sentence of its message; empty: none.
        """
        if gang.id in self.preemptors:
            return messages.PREEMPTING
        key = (self._equivalence_key(gang), gang.queue, gang.priority)
        if key in self._preemption_failed:
            return ""
        preemption = self._preemption.find_victims(self.scratch, gang, self._displaces)
        if preemption is None:
            self._preemption_failed.add(key)
            return ""
        self._evict(gang, preemption)
        return messages.PREEMPTING if preemption.victims else messages.ENDING

    def _backfill(self, gang: PendingGang) -> bool:
        """Backfill: place a gang on reserved nodes if it ends before the reservation starts."""
        if gang.max_run_time_s <= 0:
            return False
        reserved = [
            placement
            for window in self._windows.values()
            if window.fits_before_start(gang, self.now)
            for placement in window.plan
        ]
        mark = self.scratch.mark()
        return (
            bool(reserved)
            and place_on_reserved(self.scratch, gang, reserved)
            and self._accept(gang, mark)
        )

    def _evict(self, gang: PendingGang, preemption: PreemptionResult) -> None:
        self._add_reservation(gang, list(preemption.placements), cleared=True)
        self.tree.reserve(gang.queue, self.tree.request_vector(gang.requested))
        self.evictions += [
            PodEviction(
                pod.key,
                pod.uid,
                pod.node or NodeName(""),
                pod.group,
                gang.id,
                preemption.reason,
            )
            for pod in preemption.victims
        ]

    def _accept(self, gang: PendingGang, mark: int) -> bool:
        """Allocate what was placed since the mark for good, or roll it back and return False: the
        queue does not allow it.
        """
        given = self.allocations.bind(gang, self.scratch.since(mark))
        if given is None:
            self.scratch.rollback(mark)
            return False
        self._preemption.reclaim_state.remove_expected(gang.id)
        if gang.group is not None:
            self.placed.add(gang.group)
        if len(given) < len(gang.pending):
            left = [pod for pod in gang.pending if pod.key not in given]
            share = self.allocations.share_of(gang)
            self.order.requeue(QueueEntry(gang, True, deque(left), share=share))
        return True

    def _add_reservation(
        self, gang: PendingGang, plan: list[Placement], cleared: bool = False
    ) -> None:
        """Reserve the planned nodes for a gang. A new plan keeps the age of the reservation it
        replaces.
        """
        self._reserve(plan, gang.id)
        former = self.state.reservations.get(gang.id)
        nodes = [(pod.key, self.state.nodes.name_of(p.row)) for p in plan for pod in p.pods]
        since = former.created_at if former is not None and not cleared else self.now
        self.reservations[gang.id] = Reservation(tuple(sorted(nodes)), cleared, since)
        self._owners[gang.id] = gang


_ANY_QUEUE = QueueInfo("")
MAX_RESERVATIONS = 16
"""Number of queues whose first pending gangs have nodes reserved: planning for hundreds of queues
would delay each cycle. Further gangs wait in the order of their age as the first of their queue.
"""
MAX_RESERVED_PART = 0.5
"""Part of the cluster that these reservations may hold, the first one aside. Nodes that drain for
several large gangs at the same time would be idle for longer than one gang after the other takes.
"""
