"""Placing one gang, tentatively, and planning where it could start later.

A gang is placed in the closest allowed network domain, on one device model if possible, on its
previous nodes, then by role buckets, then by packing, then by backtracking. Each step that does not
satisfy the gang is rolled back. Everything works on a scratch allocation and leaves the cache
alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gangline.scheduler.cache import inter_pod
from gangline.scheduler.cache.domains import TopologyDomain, highest_tier
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.placement.backtracking import place_by_backtracking
from gangline.scheduler.placement.colocation import place_colocated, place_on_one_device_model
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.plugins.task_topology import anti_affine_roles, role_buckets
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.messages import GangCapacity
from gangline.scheduler.queueing.subgroups import Subgroup, subgroup_key
from gangline.scheduler.types.types import (
    NetworkTopologyRule,
    NodeName,
    PodInfo,
    PodKey,
    PodShape,
    Reservation,
)

MAX_CACHED_FEASIBILITY = 4096
_NO_NODE = NodeName("")


def group_by_shape(pods: Iterable[PodInfo]) -> dict[PodShape, list[PodInfo]]:
    """Group pods by shape, in the order of each shape's first pod."""
    alike: dict[PodShape, list[PodInfo]] = {}
    for pod in pods:
        alike.setdefault(pod.shape, []).append(pod)
    return alike


def placed_pods(placements: Iterable[Placement]) -> Iterator[PodInfo]:
    for placement in placements:
        yield from placement.pods


def place_gang(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    """Place as many of these pods as possible; return those that found no node.

    Pods return to their previous nodes unless that keeps the gang from being placed. A gang with a
    network rule is placed in the closest domain that holds all of it. Devices are of one model if
    some model holds as many pods.
    """
    if unit.network is None:
        if len(pods) == 1 and not (
            unit.previous_nodes or unit.running or unit.subgroups or unit.role_affinity
        ):
            # All other rules need two pods, or previous nodes.
            return list(trial.place(pods[0].shape, pods))
        return place_on_one_device_model(trial, unit, pods, _place_with_colocation)
    outer = trial.within
    for domain in _allowed_domains(trial.nodes, unit, unit.network):
        mark = trial.mark()
        trial.within = domain.rows if outer is None else outer & domain.rows
        unfit = place_on_one_device_model(trial, unit, pods, _place_with_colocation)
        trial.within = outer
        if unit.satisfied_by(placed_pods(trial.since(mark))):
            return unfit
        trial.rollback(mark)
    if unit.network.hard:
        return list(pods)
    return place_on_one_device_model(trial, unit, pods, _place_with_colocation)


def rows_in_allowed_domains(
    nodes: NodeTable, unit: PendingGang, placed: Iterable[int]
) -> NDArray[np.bool_] | None:
    """Return the rows that the network rule allows for further pods of a gang; None: all rows."""
    if unit.network is None or not unit.network.hard:
        return None
    within = np.zeros(len(nodes.infos), dtype=bool)
    for domain in _allowed_domains(nodes, unit, unit.network, placed):
        within |= domain.rows
    return within


def _allowed_domains(
    nodes: NodeTable, unit: PendingGang, rule: NetworkTopologyRule, placed: Iterable[int] = ()
) -> list[TopologyDomain]:
    """Return the domains that contain all placed members: closest tier first, then fullest."""
    highest = highest_tier(rule, nodes.hypernodes)
    known = (nodes.rows.get(pod.node or _NO_NODE) for pod in unit.running)
    running = [*placed, *(row for row in known if row is not None)]
    allowed = [
        domain
        for domain in nodes.domains()
        if (domain.tier <= highest or not rule.hard) and all(domain.rows[row] for row in running)
    ]
    free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
    fullness = {d.name: float(free[:, d.rows].sum()) for d in allowed}
    return sorted(allowed, key=lambda domain: (domain.tier, fullness[domain.name], domain.name))


def subgroup_as_gang(unit: PendingGang, part: Subgroup, pods: Sequence[PodInfo]) -> PendingGang:
    """Return a subgroup as a gang with these pods to place."""
    placed = len(part.pending) - len(pods)
    return replace(
        unit,
        pending=tuple(pods),
        missing_members=max(0, part.missing - placed),
        missing_roles=(),
        subgroup_rules=(),
        subgroups=(),
        subgroup_prefix=0,
        running=part.running,
        network=part.network,
    )


def next_subgroup(
    unit: PendingGang, left: Iterable[PodInfo]
) -> tuple[Subgroup | None, list[PodInfo]]:
    """Return the subgroup of the first pod and its pods in ``left``; None: no subgroup."""
    pods = list(left)
    key = subgroup_key(unit.subgroup_rules, pods[0])
    part = next((part for part in unit.subgroups if part.key == key), None)
    if part is None:
        return None, pods[:1]
    return part, [pod for pod in pods if subgroup_key(unit.subgroup_rules, pod) == key]


def place_subgroup(
    trial: ScratchAllocation, unit: PendingGang, part: Subgroup | None, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    """Place a complete subgroup, or none of it; return the pods that remain."""
    if part is None:
        return _place_remaining(trial, unit, pods, frozenset())
    network = part.network
    if network is not None and network.hard and len(pods) < len(part.pending):
        # Its other pods were placed in this cycle: their domain is known in the next one.
        return list(pods)
    return _place_complete_subgroup(trial, subgroup_as_gang(unit, part, pods), pods)


def _place_complete_subgroup(
    trial: ScratchAllocation, small: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    mark = trial.mark()
    left = place_gang(trial, small, pods)
    if small.satisfied_by(placed_pods(trial.since(mark))):
        return left
    trial.rollback(mark)
    return list(pods)


def _place_subgroups(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    """Place subgroups, each completely or not at all; then pods of no subgroup."""
    remaining = {pod.key: pod for pod in pods}
    unfit: list[PodInfo] = []
    for part in unit.subgroups:
        own = [pod for pod in part.pending if remaining.pop(pod.key, None) is not None]
        if own:
            unfit += _place_complete_subgroup(trial, subgroup_as_gang(unit, part, own), own)
    return unfit + _place_remaining(trial, unit, list(remaining.values()), frozenset())


def _place_with_colocation(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    return place_colocated(trial, unit, pods, _place_within_rows, placing_order)


def _place_within_rows(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    if unit.subgroups:
        return _place_subgroups(trial, unit, pods)
    for arrange in (_place_on_previous_nodes, _place_role_buckets):
        mark = trial.mark()
        settled = arrange(trial, unit, pods)
        if settled:
            unfit = _place_remaining(trial, unit, pods, settled)
            if unit.satisfied_by(placed_pods(trial.since(mark))):
                return unfit
        trial.rollback(mark)
    mark = trial.mark()
    unfit = _place_remaining(trial, unit, pods, frozenset())
    if not unfit or unit.satisfied_by(placed_pods(trial.since(mark))):
        return unfit
    trial.rollback(mark)
    if place_by_backtracking(trial, unit, pods):
        return []
    return _place_remaining(trial, unit, pods, frozenset())


def _place_role_buckets(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo]
) -> set[PodKey]:
    """Place pods of affine roles on one node each; return the placed pods."""
    if unit.role_affinity is None:
        return set()
    taken: dict[int, set[str]] = {}
    settled: set[PodKey] = set()
    for bucket in sorted(
        role_buckets(pods, unit.role_affinity), key=lambda bucket: -len(bucket.pods)
    ):
        roles = {pod.role for pod in bucket.pods}
        hostile = {role for own in roles for role in anti_affine_roles(own, unit.role_affinity)}
        avoid = {
            row
            for row, there in taken.items()
            if there & (hostile | (roles if bucket.exclusive else set()))
        }
        row = trial.place_together(bucket.pods, avoid)
        rows = {row} if row is not None else _place_bucket_in_domain(trial, bucket.pods, avoid)
        if not rows:
            return set()
        for each in rows:
            taken.setdefault(each, set()).update(roles)
        settled |= {pod.key for pod in bucket.pods}
    return settled


def _place_bucket_in_domain(
    trial: ScratchAllocation, pods: Sequence[PodInfo], avoid: Set[int]
) -> set[int]:
    """Place pods that no single node holds in the closest network domain that does; return the
    rows.
    """
    outer = trial.within
    for domain in trial.nodes.domains():
        mark = trial.mark()
        within = domain.rows.copy() if outer is None else domain.rows & outer
        within[list(avoid)] = False
        trial.within = within
        unfit = [
            pod
            for shape, alike in group_by_shape(pods).items()
            for pod in trial.place(shape, alike)
        ]
        trial.within = outer
        if not unfit:
            return {placement.row for placement in trial.since(mark)}
        trial.rollback(mark)
    return set()


def _place_remaining(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo], settled: Set[PodKey]
) -> list[PodInfo]:
    unfit: list[PodInfo] = []
    for shape, alike in placing_order(trial.nodes, unit, pods):
        left = [pod for pod in alike if pod.key not in settled] if settled else alike
        unfit += trial.place(shape, left)
    return unfit


def _place_on_previous_nodes(
    trial: ScratchAllocation, unit: PendingGang, pods: Sequence[PodInfo]
) -> set[PodKey]:
    """Place pods on their previous nodes; return the placed pods."""
    if not unit.previous_nodes:
        return set()
    rows = {name: trial.nodes.rows.get(node) for name, node in unit.previous_nodes}
    return {
        pod.key
        for pod in pods
        if (row := rows.get(pod.key)) is not None and trial.place_on_row(pod, row)
    }


def placing_order(
    nodes: NodeTable, unit: PendingGang, pods: Sequence[PodInfo]
) -> list[tuple[PodShape, list[PodInfo]]]:
    """Return pods by shape: fewest eligible nodes first, then largest; extra pods last."""
    ordered: list[tuple[PodShape, list[PodInfo]]] = []
    for part in (pods[: unit.needed], pods[unit.needed :]):
        alike = list(group_by_shape(part).items())
        if len(alike) > 1:
            alike.sort(key=lambda item: _placing_key(nodes, item[0]))
        ordered += alike
    return ordered


def _placing_key(nodes: NodeTable, shape: PodShape) -> tuple[int, float]:
    """Sort key: the number of eligible nodes, and the negative size of the request."""
    size = 0.0
    for column, amount, weight in nodes.demand(shape.request).terms:
        if weight:
            size += weight * amount / max(1, int(nodes.allocatable[column].max(initial=1)))
    return int(np.count_nonzero(nodes.eligible(shape.constraints).accepted)), -size


class ReservationPlanner:
    """Plans where gangs could start once running gangs have ended.

    Pods of no gang are assumed to run for ever, and so are the gang's own members. Nodes with the
    most free resources now come first: there a gang can start soonest.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._free_fraction: NDArray[np.float64] | None = None
        self._empty_cluster: ScratchAllocation | None = None
        """The allocation without running gangs, shared by all pending gangs that have no running
        members.
        """

    def plan(self, unit: PendingGang, promise: Reservation | None = None) -> list[Placement] | None:
        """Return where a gang could start; None: nowhere.

        The plan keeps the nodes of an earlier reservation where that is still possible. A plan that
        moved whenever another node looks better might never come true.
        """
        drained = self._scratch_for(unit)
        if promise is not None:
            unit = replace(unit, previous_nodes=promise.nodes)
        for count in sorted({unit.needed, len(unit.pending)}):
            place_gang(drained, unit, unit.pending[:count])
            plan = drained.since(0)
            drained.rollback(0)
            if unit.satisfied_by(placed_pods(plan)):
                return plan
        return None

    def is_possible(self, unit: PendingGang) -> bool:
        """Return whether a gang could start at all once running gangs have ended."""
        nodes = self._nodes
        if unit.running or unit.has_inter_pod_rules or nodes.anti_affinity_owners:
            return self.plan(unit) is not None
        known = nodes.feasibility.get(unit.equivalence_key)
        if known is None:
            if len(nodes.feasibility) >= MAX_CACHED_FEASIBILITY:
                nodes.feasibility.clear()
            known = nodes.feasibility[unit.equivalence_key] = self.plan(unit) is not None
        return known

    def _scratch_for(self, unit: PendingGang) -> ScratchAllocation:
        if unit.running:
            return self._new_scratch(unit.running)
        if self._empty_cluster is None:
            self._empty_cluster = self._new_scratch(())
        return self._empty_cluster

    def _new_scratch(self, running: Iterable[PodInfo]) -> ScratchAllocation:
        nodes = self._nodes
        if self._free_fraction is None:
            now_free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
            self._free_fraction = now_free.mean(axis=0)
        lasting = nodes.lasting.copy()
        for pod in running:
            row = nodes.rows.get(pod.node) if pod.node is not None else None
            if row is not None:
                for column, amount, _ in nodes.demand(pod.shape.request).terms:
                    lasting[column, row] += amount
        return ScratchAllocation(nodes, nodes.allocatable - lasting, liking=self._free_fraction)


def unavailable_message(
    trial: ScratchAllocation, pod: PodInfo, shortages: Mapping[str, int] | None = None
) -> str:
    """Return, in Kubernetes' wording, why no node accepts ``pod`` now.

    Args:
        trial: the allocation with the free amounts.
        pod: the pod.
        shortages: the shortages of its shape, if the caller knows them.
    """
    nodes = trial.nodes
    shape = pod.shape
    refusals = nodes.count_filter_messages(shape.constraints)
    if inter_pod.has_inter_pod_rules(nodes, pod):
        refusals += inter_pod.count_inter_pod_messages(nodes, pod, trial.tentative())
    if shortages is None:
        shortages = trial.shortages(shape)
    return messages.availability_message(len(nodes), refusals, shortages)


def gang_capacity(trial: ScratchAllocation, unit: PendingGang) -> GangCapacity:
    """Return the request of a gang and the resources of the nodes that accept any of its pods."""
    nodes = trial.nodes
    total = messages.total_request(unit.pending)
    asked = {name: amount for name, amount in total.items() if messages.is_amount(name)}
    accepts = np.zeros(len(nodes.infos), dtype=bool)
    for constraints in {pod.shape.constraints for pod in unit.pending}:
        accepts |= nodes.eligible(constraints).accepted
    columns = [nodes.columns[name] for name in asked]
    free = np.maximum(trial.free[columns], 0) * accepts
    there = nodes.allocatable[columns] * accepts
    return GangCapacity(
        requested=asked,
        free=dict(zip(asked, free.sum(axis=1).tolist(), strict=True)),
        max_node_free=dict(zip(asked, free.max(axis=1, initial=0).tolist(), strict=True)),
        total=dict(zip(asked, there.sum(axis=1).tolist(), strict=True)),
        eligible_nodes=int(np.count_nonzero(accepts)),
    )
