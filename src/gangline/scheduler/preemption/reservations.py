"""Reservations: of preemptors, of members that are about to be created, and backfill beside them.

- Preemptor: resources freed by an eviction stay reserved for the gang that caused it, for at most
  10 minutes, and only while the gang still fits there once all terminating pods have ended.
- Restart: some time passes between the end of a pod and the creation of its successor. If another
  pod takes the node in that interval, the complete gang stops. A running gang that has lost a
  member (observed here) keeps the node for 30 seconds. A gang that restarts announces the node of
  each pod and an expiry on its group.
- Joining pods: some pods, such as a launcher, are created only when the other members run. The gang
  starts only where they fit too, and every cycle first places them again before it serves other
  gangs. No node is recorded: their resources are free as long as each cycle reserves them.
- Head of line: the first pending gang of each queue, if the queue is entitled to its request, and
  the first of the cycle in any case. Its nodes stay usable until the reservation can start: the
  latest known end of the pods that have to end there. A gang may backfill if its run time is
  bounded (``activeDeadlineSeconds``, or the run-time annotation of its group) and it ends before
  that. A reservation without nodes keeps the position of a gang whose nodes are planned later.

Invariant: a backfilled gang never delays the reservation.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.gang import place_gang, placed_pods
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.victims import end_pods, placed_on_rows
from gangline.scheduler.queueing.gangs import (
    PendingGang,
    active_previous_nodes,
    counts_towards_min_member,
    joining_gangs,
)
from gangline.scheduler.types import (
    GroupKey,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PodShape,
    Request,
    Reservation,
)


def latest_end(state: SchedulerCache, pod: PodInfo, now: float) -> float:
    """Return when a running pod will have ended at the latest; infinite: unknown."""
    if pod.is_terminating:
        return now
    group = state.groups.get(pod.group) if pod.group is not None else None
    limits = (pod.max_run_time_s, group.max_run_time_s if group is not None else 0.0)
    limit = min((seconds for seconds in limits if seconds > 0), default=inf)
    # A pod that has not started yet has its full run time left.
    return (pod.started_at or now) + limit


def earliest_start(
    state: SchedulerCache, scratch: ScratchAllocation, plan: Iterable[Placement], now: float
) -> float:
    """Return the time in seconds when the planned nodes can be free; 0: unknown.

    Args:
        scratch: the scratch allocation, to which the plan was charged already.
        now: the time in seconds since the epoch.
    """
    rows = {placement.row for placement in plan}
    latest = max((_row_earliest_start(state, scratch, row, now) for row in rows), default=now)
    return latest if latest < inf else 0.0


def _row_earliest_start(
    state: SchedulerCache, scratch: ScratchAllocation, row: int, now: float
) -> float:
    lacking = {
        name: -int(scratch.free[column, row])
        for name, column in state.nodes.columns.items()
        if scratch.free[column, row] < 0
    }
    node = state.nodes.infos[row]
    if node is None or not lacking:
        return now
    # Keys are unique, so pods themselves are never compared.
    ending = sorted((latest_end(state, pod, now), pod.key, pod) for pod in state.pods_on(node.name))
    for when, _, pod in ending:
        for name, amount in pod.shape.request:
            if name in lacking:
                lacking[name] -= amount
        if all(amount <= 0 for amount in lacking.values()):
            return when
    return inf


@dataclass(frozen=True, slots=True)
class BackfillWindow:
    """Reserved placements of a pending gang, and when the reservation can start."""

    plan: tuple[Placement, ...] = ()
    earliest_start: float = 0.0

    def fits_before_start(self, gang: PendingGang, now: float) -> bool:
        """Return whether a gang certainly ends before the reservation can start."""
        return 0 < gang.max_run_time_s <= self.earliest_start - now


def place_on_reserved(
    scratch: ScratchAllocation, gang: PendingGang, reserved: Iterable[Placement]
) -> bool:
    """Place the minimum of a gang, also on these reserved nodes; return whether it fits."""
    reserved = list(reserved)
    scratch.release(reserved)
    mark = scratch.mark()
    place_gang(scratch, gang, gang.pending[: gang.needed])
    is_placed = gang.satisfied_by(placed_pods(scratch.since(mark)))
    if not is_placed:
        scratch.rollback(mark)
    scratch.reserve(reserved)
    return is_placed


def former_plans(state: SchedulerCache, gangs: Iterable[PendingGang]) -> dict[str, list[Placement]]:
    """Return what the reservations of first pending gangs hold, if there are several of them."""
    waiting = {
        name: dict(reservation.nodes)
        for name, reservation in state.reservations.items()
        if reservation.nodes and not reservation.preempting
    }
    if len(waiting) < 2:
        return {}
    return {
        gang.id: [
            Placement((pod,), row, state.nodes.demand(pod.shape.request))
            for pod in gang.pending
            if (node := waiting[gang.id].get(pod.key)) is not None
            and (row := state.nodes.rows.get(node)) is not None
        ]
        for gang in gangs
        if gang.id in waiting
    }


PREEMPTOR_RESERVATION_S = 600.0
"""Validity of a preemptor's reservation: longer than the grace period of evicted pods."""


def has_expired(reservation: Reservation, now: float) -> bool:
    """Return whether a preemptor's reservation is not valid any more."""
    return now - reservation.created_at >= PREEMPTOR_RESERVATION_S


@dataclass(frozen=True, slots=True)
class PreemptorReservations:
    """Valid reservations of preemptors, by the identity of the gang."""

    placements: Mapping[str, list[Placement]]
    state: SchedulerCache

    def with_nominated_nodes(self, gang: PendingGang) -> PendingGang:
        """Return the gang with its reserved nodes as nominated nodes, if it has any."""
        if gang.id not in self.placements:
            return gang
        nodes = self.state.reservations[gang.id].nodes
        key = (gang.equivalence_key, gang.id)
        return replace(gang, nominated_nodes=nodes, equivalence_key=key)


def valid_reservations(
    state: SchedulerCache, gangs: Iterable[PendingGang], now: float
) -> PreemptorReservations:
    """Return the reservations that gangs can use once the evicted pods have ended."""
    preempting = {
        name: reservation
        for name, reservation in state.reservations.items()
        if reservation.preempting and not has_expired(reservation, now)
    }
    if not preempting:
        return PreemptorReservations({}, state)
    nodes = {node for reservation in preempting.values() for _, node in reservation.nodes}
    scratch = ScratchAllocation(state.nodes)
    # An eviction that the API server refused is undone in the cache: its pod is not terminating any
    # more, and the reservation that counts on it ends here.
    pods = [pod for node in sorted(nodes) for pod in state.pods_on(node)]
    pods += [
        holder
        for gang in gangs
        if gang.id in preempting
        for pod in gang.pending
        for holder in scratch.volumes.holders(pod)
    ]
    leaving = {pod.key: pod for pod in pods if pod.is_terminating}
    end_pods(state, scratch, placed_on_rows(state, leaving.values()))
    valid: dict[str, list[Placement]] = {}
    # In scheduling order: earlier gangs keep their nodes if not all reservations fit any more.
    for gang in sorted((u for u in gangs if u.id in preempting), key=lambda gang: gang.order):
        mark = scratch.mark()
        rows = {pod: state.nodes.rows.get(node) for pod, node in preempting[gang.id].nodes}
        for pod in gang.pending:
            row = rows.get(pod.key)
            if row is not None:
                scratch.place_on_row(pod, row)
        if gang.satisfied_by(placed_pods(scratch.since(mark))):
            valid[gang.id] = scratch.since(mark)
        else:
            scratch.rollback(mark)
    return PreemptorReservations(valid, state)


LOST_MEMBER_RESERVATION_S = 30.0
"""Validity of a lost member's reservation: operators recreate pods within seconds, or back off on
purpose.
"""


@dataclass(frozen=True, slots=True)
class RestartReservation:
    """A tentative placement for a member that is to be recreated."""

    group: GroupKey
    pod: PodKey
    placement: Placement


def restart_reservations(state: SchedulerCache, now: float) -> Iterator[RestartReservation]:
    """Yield the reservations of members that do not exist yet, or are pending."""
    for key in sorted(state.lost_members.keys() | state.restarting_groups):
        group = state.groups.get(key)
        if group is None:
            continue
        kept = active_previous_nodes(group, now)
        for name, node in kept:
            if (placement := _previous_node_placement(state, group, name, node)) is not None:
                yield RestartReservation(key, name, placement)
        # A member may be both announced and lost: it is one pod, and needs one node.
        announced = {name for name, _ in kept}
        for pod in _missing_lost_members(state, group, now):
            if (
                pod.key not in announced
                and (placement := _lost_member_placement(state, pod)) is not None
            ):
                yield RestartReservation(key, pod.key, placement)


def joining_reservations(
    state: SchedulerCache, scratch: ScratchAllocation
) -> Iterator[tuple[PendingGang, list[Placement]]]:
    """Yield the pods that join running gangs, with placements that are not charged any more.

    The caller charges them before it takes the next.
    """
    for gang in joining_gangs(state):
        mark = scratch.mark()
        place_gang(scratch, gang, gang.pending)
        placements = scratch.since(mark)
        scratch.rollback(mark)
        if placements:
            yield gang, placements


def _previous_node_placement(
    state: SchedulerCache, group: PodGroupInfo, name: PodKey, node: NodeName
) -> Placement | None:
    """Return the placement to reserve on ``node`` for the pod of this name, if any."""
    row = state.nodes.rows.get(node)
    if row is None:
        return None
    present = state.members.get(group.key, {}).get(name)
    pod = present or state.former_members.get(group.key, {}).get(name)
    if pod is None:
        return Placement((), row, state.nodes.demand(_estimated_request(group)), unseen_pods=1)
    lives = present is not None and present.holds_resources
    if lives or pod.phase == "Succeeded" or not _accepts(state, pod.shape, row):
        return None
    return Placement((pod,), row, state.nodes.demand(pod.shape.request))


def _estimated_request(group: PodGroupInfo) -> Request:
    """Estimate the request of an unseen pod: an equal part of the group's minimal resources."""
    size = max(1, group.size)
    return tuple((name, -(-amount // size)) for name, amount in group.min_resources)


def _missing_lost_members(state: SchedulerCache, group: PodGroupInfo, now: float) -> list[PodInfo]:
    """Return the members lost lately that no pending pod replaces, as many as the gang lacks."""
    if group.key not in state.lost_members:
        return []
    members = state.members.get(group.key, {}).values()
    settled = [pod for pod in members if counts_towards_min_member(pod)]
    missing = group.min_member - len(settled)
    if missing <= sum(pod.is_pending for pod in members) or not any(
        p.holds_resources for p in settled
    ):
        return []
    recent = [
        lost for lost in state.lost_members[group.key] if now - lost.at < LOST_MEMBER_RESERVATION_S
    ]
    recent.sort(key=lambda lost: (-lost.at, lost.pod.key))
    return [lost.pod for lost in recent[:missing]]


def _lost_member_placement(state: SchedulerCache, pod: PodInfo) -> Placement | None:
    row = state.nodes.rows.get(pod.node) if pod.node is not None else None
    if row is None or not _accepts(state, pod.shape, row):
        return None
    return Placement((pod,), row, state.nodes.demand(pod.shape.request))


def _accepts(state: SchedulerCache, shape: PodShape, row: int) -> bool:
    return bool(state.nodes.eligible(shape.constraints).accepted[row])
