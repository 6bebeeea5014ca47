"""Reservations of preemptors within one cycle, and the gangs that they give way to.

A preemptor's reservation is charged against all gangs until its owner is served. For a gang of the
same queue and of higher priority it is released, as kube-scheduler ignores the nominated pods of
lower priority: the gang starts on these resources, or waits for the same pods to end. So it neither
waits behind a lower priority, nor evicts other pods while those of the reservation are ending.
Between queues fair shares decide: a reservation gives way to a gang that could reclaim from its
owner if that had started, since the owner would be evicted right after its start.

A displaced gang searches victims again in the same cycle. Both rules are strict orders, as those of
evictions are, so two gangs cannot displace each other in turn.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.preempt import PreemptionEvaluator, eviction_reason
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types import (
    GangId,
    NodeName,
    PodEviction,
    PodInfo,
    PodKey,
    Reservation,
)


@dataclass(frozen=True, slots=True)
class ActiveReservation:
    """A valid reservation of an earlier cycle, and its owner."""

    gang: PendingGang
    placements: list[Placement]


class ActiveReservations:
    """The valid reservations of preemptors.

    Args:
        reserved: reserved placements of the cycle, by gang.
    """

    def __init__(
        self,
        scratch: ScratchAllocation,
        tree: QueueTree,
        preemption: PreemptionEvaluator,
        reserved: MutableMapping[str, list[Placement]],
    ) -> None:
        self._scratch, self._tree, self._preemption = scratch, tree, preemption
        self._reserved = reserved
        self._known: dict[str, ActiveReservation] = {}
        self._unserved: dict[str, ActiveReservation] = {}
        """Those whose owners were not served yet: only these give way."""
        self._unserved_of: dict[str, dict[str, ActiveReservation]] = defaultdict(dict)
        """The same by queue."""
        self.displaced: dict[GangId, str] = {}
        """Gangs that have lost their reservation, and why, as a sentence of their messages."""

    def add(self, reservation: ActiveReservation) -> None:
        gang = reservation.gang
        self._known[gang.id] = self._unserved[gang.id] = reservation
        self._unserved_of[gang.queue][gang.id] = reservation
        self.charge(reservation)

    @property
    def has_unserved(self) -> bool:
        """True if the owners of some were not served yet."""
        return bool(self._unserved)

    def __contains__(self, gang: str) -> bool:
        return gang in self._known

    def take(self, gang: str) -> ActiveReservation | None:
        """Release the reservation of the gang that is served now; None: it has none."""
        reservation = self._unserved.pop(gang, None)
        if reservation is not None:
            del self._unserved_of[reservation.gang.queue][gang]
            self.release(reservation)
        return reservation

    def charge(self, reservation: ActiveReservation) -> None:
        """Charge nodes, the limits of queues, and shares."""
        # `release` undoes exactly this: a part that is forgotten there would leak for the cycle.
        gang = reservation.gang
        self._scratch.reserve(reservation.placements)
        self._reserved[gang.id] = reservation.placements
        self._tree.reserve(gang.queue, self._tree.request_vector(gang.requested))
        self._preemption.reclaim_state.add_expected(gang.id, gang.queue, gang.requested)

    def release(self, reservation: ActiveReservation) -> None:
        """Release what was charged."""
        gang = reservation.gang
        self._scratch.release(reservation.placements)
        self._reserved.pop(gang.id, None)
        self._tree.reserve(gang.queue, -self._tree.request_vector(gang.requested))
        self._preemption.reclaim_state.remove_expected(gang.id)

    def yielding_to(self, gang: PendingGang) -> list[ActiveReservation]:
        """Return the reservations that give way to a gang, in the order in which they do."""
        if not self._unserved:
            return []
        owing = self._preemption.owing_queues(gang) & self._unserved_of.keys()
        queues = (gang.queue, *owing)
        listed = [r for queue in queues for r in self._unserved_of.get(queue, {}).values()]
        listed.sort(key=lambda reservation: reservation.gang.order, reverse=True)
        listed.sort(key=self._tier)
        others = [
            reservation.gang for reservation in listed if reservation.gang.queue != gang.queue
        ]
        displaced = {
            owner.id for owner in (self._preemption.may_displace(gang, others) if others else ())
        }
        return [
            reservation
            for reservation in listed
            if reservation.gang.id in displaced
            or (reservation.gang.queue == gang.queue and reservation.gang.priority < gang.priority)
        ]

    def _tier(self, reservation: ActiveReservation) -> tuple[int, int]:
        """Sort key: the priority of the queue, then of the gang, as for victims."""
        gang = reservation.gang
        return self._tree.queues[gang.queue].info.priority, gang.priority

    def release_for(
        self,
        yielding: Sequence[ActiveReservation],
        conditions: Iterable[Callable[[], bool]],
    ) -> Sequence[ActiveReservation]:
        """Release as few reservations as necessary, and return them.

        The first condition that holds without some of them decides. If none holds without all of
        them, all are released: the gang may need further victims.
        """
        for condition in conditions:
            if condition():
                return ()
            if self._holds_without(yielding, condition):
                # More free resources never make a condition fail: bisection finds the fewest.
                low, high = 1, len(yielding)
                while low < high:
                    middle = (low + high) // 2
                    if self._holds_without(yielding[:middle], condition):
                        high = middle
                    else:
                        low = middle + 1
                yielding = yielding[:low]
                break
        for reservation in yielding:
            self.release(reservation)
        return yielding

    def _holds_without(
        self, yielding: Sequence[ActiveReservation], condition: Callable[[], bool]
    ) -> bool:
        for reservation in yielding:
            self.release(reservation)
        holds = condition()
        for reservation in yielding:
            self.charge(reservation)
        return holds

    def restore(self, released: Iterable[ActiveReservation]) -> None:
        """Charge released reservations again: the gang could not use them."""
        for reservation in released:
            self.charge(reservation)

    def displace(self, released: Iterable[ActiveReservation], gang: PendingGang) -> bool:
        """Drop the released reservations that do not fit any more beside what a gang got.

        Returns:
            Whether one was dropped: then the rest of its resources is free.
        """
        before = len(self.displaced)
        for reservation in sorted(released, key=lambda reservation: reservation.gang.order):
            if self._preemption.still_fits(self._scratch, reservation.gang, reservation.placements):
                self.charge(reservation)
            else:
                owner = reservation.gang
                del self._known[owner.id], self._unserved[owner.id]
                del self._unserved_of[owner.queue][owner.id]
                within = owner.queue == gang.queue
                text = messages.DISPLACED if within else messages.DISPLACED_BY_SHARE
                self.displaced[owner.id] = text.format(gang.name)
        return len(self.displaced) > before


def awaited_pods(
    state: SchedulerCache,
    scratch: ScratchAllocation,
    owners: Iterable[tuple[PendingGang, Reservation, Sequence[Placement]]],
    victims: Iterable[PodKey],
) -> dict[PodKey, PodEviction]:
    """Return the terminating pods that preempting reservations need, with their present owners.

    Args:
        scratch: the allocation at the end of the cycle, to which all reservations are charged.
        owners: the gangs with reservations, and the placements that are charged for them.
        victims: pods that this cycle evicts: they count as terminating.
    """
    listed = [owner for owner in owners if owner[2]]
    after = scratch.fork(scratch.free.copy())
    for _, _, placements in listed:
        after.release(placements)
    evicted = set(victims)
    on_row: dict[int, list[PodInfo]] = {}
    awaited: dict[PodKey, PodEviction] = {}
    for gang, reservation, placements in listed:
        if not reservation.preempting:
            continue
        for holder in (h for own in gang.pending for h in after.volumes.holders(own)):
            if holder.is_terminating or holder.key in evicted:
                awaited[holder.key] = _eviction_for(state, holder, gang)
        for placement in placements:
            after.reserve([placement])
            row = placement.row
            if row not in on_row:
                on_row[row] = _ending_on(state, row, evicted)
            columns = [column for column, _, _ in placement.demand.terms]
            takes_all = gang.has_inter_pod_rules or bool(state.nodes.anti_affinity_owners)
            for pod in list(on_row[row]):
                lacks = any(after.free[column, row] < 0 for column in columns)
                # What blocks besides amounts (rules, attachments) is not known by pod.
                if not (lacks or takes_all or pod.claims):
                    continue
                on_row[row].remove(pod)
                for column, amount, _ in state.nodes.demand(pod.shape.request).terms:
                    after.free[column, row] += amount
                awaited[pod.key] = _eviction_for(state, pod, gang)
    return awaited


def _ending_on(state: SchedulerCache, row: int, evicted: set[PodKey]) -> list[PodInfo]:
    pods = state.pods_on(state.nodes.name_of(row))
    return sorted(
        (pod for pod in pods if pod.is_terminating or pod.key in evicted), key=lambda pod: pod.key
    )


def _eviction_for(state: SchedulerCache, pod: PodInfo, gang: PendingGang) -> PodEviction:
    within = state.usage.queue_of(pod.group) == gang.queue
    return PodEviction(
        pod.key,
        pod.uid,
        pod.node or NodeName(""),
        pod.group,
        gang.id,
        eviction_reason(gang.name, within),
    )
