"""Diagnosis: the facts for the messages of a gang that the cycle could not place."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.gang import (
    accepting_rows,
    claims_message,
    gang_capacity,
    place_gang,
    placed_pods,
    unavailable_message,
)
from gangline.scheduler.placement.reservation_planner import ReservationPlanner
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation, may_hold
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.messages import (
    GangCapacity,
    PlacementAttempt,
    QueueLimit,
    ReservationSummary,
    ResourceHolders,
)
from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree, Vector
from gangline.scheduler.types import GangId, GroupKey, NodeName, PendingReason, PodInfo


def queue_limit(tree: QueueTree, queue: QueueAttributes, amount: Vector) -> QueueLimit:
    """Return the amounts of the resources for which a queue's limit blocks a request."""
    over = queue.used + queue.reserved + amount > queue.limit
    short = {name: c for name, c in tree.columns.items() if amount[c] > 0 and over[c]}
    own = dict(queue.info.capability)
    return QueueLimit(
        leaves_guarantees=all(own.get(n, np.inf) > queue.limit[c] for n, c in short.items()),
        queue=queue.info.name,
        used={name: int(queue.used[column]) for name, column in short.items()},
        reserved={name: int(queue.reserved[column]) for name, column in short.items()},
        limit={name: int(queue.limit[column]) for name, column in short.items()},
        requested={name: int(amount[column]) for name, column in short.items()},
    )


MAX_AHEAD = 3
"""Number of gangs ahead of a pending gang that its message names."""
MAX_SHOWN = 3
"""Number of gangs and nodes that a message names."""
_MAX_LASTING = 200
"""Number of pods that may never end that are examined: some may be on other nodes."""
_CANDIDATES = 8
"""Number of large gangs that are examined: not all of their pods need be on the eligible nodes."""


@dataclass(frozen=True, slots=True)
class PlacementFailure:
    """Messages of equivalent pending gangs."""

    gang_message: str
    pod_message: str
    if_preempting: "PlacementFailure | None" = None
    """The messages if pods are being evicted for the gang; None: the same."""


class PendingReasons:
    """The reasons of the gangs that stay pending, in the order in which these were served.

    Args:
        displaced: why gangs have lost their reservation, as a sentence of their messages.
        explains: whether the reasons have messages.
    """

    def __init__(self, displaced: Mapping[GangId, str], explains: bool) -> None:
        self.reasons: list[PendingReason] = []
        self.explains, self._displaced = explains, displaced
        self._ahead: dict[str, tuple[str, ...]] = {}
        """The first of these gangs of each queue."""
        self._counts: Counter[str] = Counter()
        """All of them by queue: they are before the next one."""

    def add(
        self, gang: PendingGang, reason: str, gang_message: str, pod_message: str | None = None
    ) -> None:
        """Add a gang, and the message of its pods if that is another one."""
        if not self.explains:
            self.reasons.append(PendingReason(reason, "", (), gang.group))
            return
        message = gang_message if pod_message is None else pod_message
        if (cause := self._displaced.get(gang.id)) is not None:
            gang_message = messages.clip_message(gang_message, cause)
            message = messages.clip_message(message, cause)
        ahead, count = self._ahead.get(gang.queue, ()), self._counts[gang.queue]
        if gang.group is not None:
            standing = messages.position_message(gang.queue, count, gang.pending_since, ahead)
            gang_message = messages.clip_message(gang_message, standing)
        self._counts[gang.queue] += 1
        if len(ahead) < MAX_AHEAD:
            self._ahead[gang.queue] = (*ahead, gang.name)
        pods = tuple([(key, message) for key in gang.pod_keys])
        self.reasons.append(PendingReason(reason, gang_message, pods, gang.group))


class PlacementDiagnosis:
    """Explains failures within one cycle."""

    def __init__(
        self, state: SchedulerCache, scratch: ScratchAllocation, planner: ReservationPlanner
    ) -> None:
        self._state, self._scratch, self._planner = state, scratch, planner
        self._lasting: dict[str, list[PodInfo]] = {}
        """The largest pods that may never end, by resource."""
        self._users: dict[tuple[str, str], ResourceHolders] = {}

    def explain_failure(
        self, gang: PendingGang, mark: int, unfit: PodInfo, held: Mapping[str, Sequence[Placement]]
    ) -> PlacementFailure:
        """Roll the allocation back to ``mark`` and return why the gang is pending.

        Args:
            mark: the point where its placement began.
            unfit: one of its pods that found no node.
            held: reserved placements, by the name of their gang.
        """
        fitted = sum(len(placement.pods) for placement in self._scratch.since(mark))
        shortages = self._scratch.shortages(unfit.shape)
        message = unavailable_message(self._scratch, unfit, shortages)
        claims = claims_message(self._scratch, unfit)
        fits_amounts = _has_amounts(self._scratch, unfit)
        self._scratch.rollback(mark)
        capacity, held_for = self._capacity_without_reservations(gang, held)
        attempt = PlacementAttempt(
            pending=len(gang.pending),
            fitted=fitted,
            missing=gang.needed,
            running=len(gang.running),
            unplaced_pod=unfit,
            kubernetes_message=message,
            shortages=shortages,
            capacity=capacity,
            is_feasible=self._planner.is_possible(gang),
            reserved_for=held_for,
            holders=self._holders(gang, capacity, shortages),
            claims=claims,
            fits_amounts=fits_amounts,
            is_uniform=len({pod.shape for pod in gang.pending}) == 1,
            in_domain=gang.network is not None and gang.network.hard,
        )
        if not attempt.is_feasible and attempt.holders is not None:
            kept = self._lasting_pods(gang, capacity, attempt.holders.resource)
            attempt = replace(attempt, holders=replace(attempt.holders, lasting_pods=kept))
        near = messages.domain_required(gang.network)
        if attempt.is_feasible:
            return _failure(attempt, near)
        # A plan assumes that single pods never end, but preemption may evict them.
        cleared = _failure(replace(attempt, is_feasible=True), near)
        return replace(_failure(attempt, near), if_preempting=cleared)

    def summarize_plan(
        self, gang: PendingGang, placements: Iterable[Placement]
    ) -> ReservationSummary:
        """Return the planned nodes of a gang, and the gangs that run there now."""
        nodes: list[NodeName] = []
        gangs: Counter[str] = Counter()
        for row in sorted({placement.row for placement in placements}):
            node = self._state.nodes.infos[row]
            if node is None:
                continue
            nodes.append(node.name)
            gangs.update(
                pod.group
                for pod in self._state.pods_on(node.name)
                if pod.group is not None and pod.group != gang.group
            )
        ordered = sorted(gangs, key=lambda name: (-gangs[name], name))
        return ReservationSummary(tuple(sorted(nodes)), tuple(ordered))

    def largest_users(self, queue: QueueAttributes, resource: str) -> ResourceHolders:
        users = self._users.get((queue.info.name, resource))
        if users is None:
            running = self._state.usage
            below = _queue_names(queue)
            used = {
                group: amounts[resource]
                for group, amounts in running.by_group.items()
                if amounts.get(resource) and running.queue_of(group) in below
            }
            users = _holders(resource, used, sum(used.values()), 0)
            self._users[queue.info.name, resource] = users
        return users

    def _capacity_without_reservations(
        self, gang: PendingGang, held: Mapping[str, Sequence[Placement]]
    ) -> tuple[GangCapacity, str]:
        """Return the capacity without reservations, and their owners if these alone keep the gang
        pending.
        """
        capacity = gang_capacity(self._scratch, gang)
        if not all(capacity.free.get(name, amount) >= amount for name, amount in gang.requested):
            return capacity, ""
        if not any(held.values()):
            return capacity, ""
        without = self._scratch.without_reservations()
        if without is not None:
            fits = _fits(without, gang)
        else:
            kept = [placement for placements in held.values() for placement in placements]
            self._scratch.release(kept)
            fits = _fits(self._scratch, gang)
            self._scratch.reserve(kept)
        return capacity, ", ".join(held) if fits else ""

    def _lasting_pods(
        self, gang: PendingGang, capacity: GangCapacity, resource: str
    ) -> tuple[tuple[str, int], ...]:
        """Return the largest pods that may never end on nodes that accept the gang, and that it
        may not evict; empty if the gang is too large even without them.
        """
        nodes = self._state.nodes
        if capacity.requested.get(resource, 0) > capacity.total.get(resource, 0):
            return ()
        if resource not in self._lasting:
            pods = nodes.lasting_pods.values()
            self._lasting[resource] = nlargest(
                _MAX_LASTING, pods, key=lambda pod: (_amount(pod, resource), pod.key)
            )
        accepts = accepting_rows(self._state.nodes, gang)
        evictable = {pod.key for pod in self._planner.evictable_pods(gang)}
        largest = [
            (str(pod.key), _amount(pod, resource))
            for pod in self._lasting[resource]
            if _amount(pod, resource)
            and pod.key not in evictable
            and accepts[nodes.rows[pod.node or NodeName("")]]
        ]
        return tuple(largest[:MAX_SHOWN])

    def _holders(
        self, gang: PendingGang, capacity: GangCapacity, shortages: Mapping[str, int]
    ) -> ResourceHolders | None:
        """Return the largest users of the scarce resource on the nodes that accept the gang."""
        resource = _scarcest(capacity, shortages)
        if resource is None:
            return None
        nodes = self._state.nodes
        accepts = accepting_rows(self._state.nodes, gang)
        largest = self._state.usage.largest(resource, _CANDIDATES)
        if np.count_nonzero(accepts) == len(nodes):
            used = dict(largest)
        else:
            used = {group: self._used_on(accepts, group, resource) for group, _ in largest}
        used = {group: amount for group, amount in used.items() if amount and group != gang.group}
        column = nodes.columns[resource]
        total = int((nodes.used[column] * accepts).sum())
        return _holders(resource, used, total, int((nodes.lasting[column] * accepts).sum()))

    def _used_on(self, accepts: NDArray[np.bool_], group: GroupKey, resource: str) -> int:
        rows = self._state.nodes.rows
        used = 0
        for pod in self._state.placed_members.get(GangId(group), {}).values():
            row = rows.get(pod.node) if pod.node is not None else None
            if row is not None and accepts[row]:
                used += _amount(pod, resource)
        return used


def _fits(scratch: ScratchAllocation, gang: PendingGang) -> bool:
    """Return whether a gang would fit; the allocation is rolled back."""
    if not may_hold(scratch.nodes, scratch.free, gang.pending):
        return False
    mark = scratch.mark()
    place_gang(scratch, gang, gang.pending)
    fits = gang.satisfied_by(placed_pods(scratch.since(mark)))
    scratch.rollback(mark)
    return fits


def _has_amounts(scratch: ScratchAllocation, pod: PodInfo) -> bool:
    """Return whether an eligible node has enough free of all that messages show as amounts."""
    nodes, shape = scratch.nodes, pod.shape
    rows = nodes.eligible(shape.constraints).accepted.copy()
    for name, amount in shape.request:
        if messages.is_amount(name):
            rows &= scratch.free[nodes.columns[name]] >= amount
    return bool(rows.any())


def _amount(pod: PodInfo, resource: str) -> int:
    return dict(pod.shape.request).get(resource, 0)


def _failure(attempt: PlacementAttempt, near: str) -> PlacementFailure:
    gang, pod = messages.gang_message(attempt), messages.pod_message(attempt)
    return PlacementFailure(f"{near}{gang}", f"{pod} {near}".strip())


def _holders(
    resource: str, used: Mapping[GroupKey, int], total: int, without_gang: int
) -> ResourceHolders:
    largest = sorted(used, key=lambda group: (-used[group], group))[:MAX_SHOWN]
    shown = tuple((str(group), used[group]) for group in largest)
    others = total - without_gang - sum(amount for _, amount in shown)
    return ResourceHolders(resource, shown, without_gang, max(0, others))


def _scarcest(capacity: GangCapacity, shortages: Mapping[str, int]) -> str | None:
    """Return the resource with the largest relative shortage; None: no amount is short."""
    short = {
        name: (asked - capacity.free[name]) / asked
        for name, asked in capacity.requested.items()
        if asked > capacity.free[name]
    }
    if short:
        return min(short, key=lambda name: (-short[name], name))
    counts = {name: count for name, count in shortages.items() if name in capacity.requested}
    return min(counts, key=lambda name: (-counts[name], name)) if counts else None


def _queue_names(queue: QueueAttributes) -> set[str]:
    names = {queue.info.name}
    for child in queue.children:
        names |= _queue_names(child)
    return names
