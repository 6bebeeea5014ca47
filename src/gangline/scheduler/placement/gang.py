"""Placing one gang, tentatively, and the facts about one that was not placed.

A gang is placed in the closest allowed network domain, on one device model if possible, on its
previous nodes, then by role buckets, then by packing, then by backtracking. Each step that does not
satisfy the gang is rolled back. Everything works on a scratch allocation and leaves the cache
alone.

Packing goes through the pods once and never revises a placement. That is nearly always optimal, and
always for pods of one shape. A gang of several kinds of pods may still fit in another way. Where
few nodes accept any of them, those ways are tried within fixed bounds, so that a gang that fits
nowhere does not delay the cycle.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gangline.scheduler.cache import inter_pod
from gangline.scheduler.cache.node_table import NodeTable, TopologyDomain, highest_tier
from gangline.scheduler.placement.colocation import place_colocated, place_on_one_device_model
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.plugins.devices import CANNOT_ALLOCATE
from gangline.scheduler.plugins.task_topology import anti_affine_roles, role_buckets
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import (
    PendingGang,
    Subgroup,
    required_first,
    subgroup_key,
)
from gangline.scheduler.queueing.messages import GangCapacity
from gangline.scheduler.types import (
    NetworkTopologyRule,
    NodeName,
    PodInfo,
    PodKey,
    PodShape,
)

MAX_PODS = 12
MAX_NODES = 16
"""Bound on nodes with free resources for any of the pods: with more, packing finds a way."""
MAX_STEPS = 300
"""Maximal number of placements that are tried."""
MAX_ROW_CHECKS = 20_000
"""Maximal number of tried placements times nodes, for pods with inter-pod rules: each of their
placements compares all nodes.
"""

PodKind = tuple[Hashable, ...]
"""Pods that are equivalent, also to the rules of other pods."""


def place_by_backtracking(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> bool:
    """Place all of these pods or none of them; return whether they are placed."""
    if not 2 <= len(pods) <= MAX_PODS or len(pods) > gang.needed:
        return False
    kinds: dict[PodKind, list[PodInfo]] = {}
    for pod in pods:
        claims = pod.claims if scratch.volumes.concerns(pod) else ()
        devices = scratch.nodes.devices.kinds(pod)
        kinds.setdefault((pod.shape, pod.labels, claims, devices), []).append(pod)
    related = any(scratch.has_inter_pod_rules(pod.shape) for pod in pods)
    if len(kinds) == 1 and not (related or any(map(scratch.matches_claims, pods))):
        return False
    rows = {kind: scratch.rows_for(same_kind[0].shape) for kind, same_kind in kinds.items()}
    if not all(rows.values()) or len(set().union(*rows.values())) > MAX_NODES:
        return False
    if not _has_enough_in_total(scratch, pods, sorted(set().union(*rows.values()))):
        return False
    steps = min(MAX_STEPS, max(1, MAX_ROW_CHECKS // len(scratch.nodes))) if related else MAX_STEPS
    return _Backtracking(scratch, rows, related, steps).extend(kinds, {})


def _has_enough_in_total(
    scratch: ScratchAllocation, pods: Sequence[PodInfo], rows: Sequence[int]
) -> bool:
    asked: dict[int, int] = {}
    for pod in pods:
        for column, amount, _ in scratch.nodes.demand(pod.shape.request).terms:
            asked[column] = asked.get(column, 0) + amount
    free = np.maximum(scratch.free[:, rows], 0).sum(axis=1)
    return all(free[column] >= amount for column, amount in asked.items())


class _Backtracking:
    def __init__(
        self, scratch: ScratchAllocation, rows: dict[PodKind, list[int]], related: bool, steps: int
    ) -> None:
        self._scratch = scratch
        self._rows = rows
        self._related = related
        """True if the order of the pods matters."""
        self._steps = steps

    def extend(self, left: dict[PodKind, list[PodInfo]], first: dict[PodKind, int]) -> bool:
        """Place the remaining pods.

        Args:
            first: index of the node that took the last pod of each kind. They are equivalent,
                so the next one starts at this node.
        """
        if not left:
            return True
        for kind in left if self._related else list(left)[:1]:
            pod, *others = left[kind]
            rest = {key: others if key == kind else pods for key, pods in left.items()}
            if not others:
                del rest[kind]
            begin = 0 if self._related else first.get(kind, 0)
            for index in range(begin, len(self._rows[kind])):
                if not self._steps:
                    return False
                self._steps -= 1
                mark = self._scratch.mark()
                if self._scratch.place_on_row(pod, self._rows[kind][index]):
                    if self.extend(rest, {**first, kind: index}):
                        return True
                    self._scratch.rollback(mark)
        return False


class _Moves:
    """Places further pods by moving those with competing volumes: augmenting paths over pods.

    For pods with one claim each, on nodes with enough free resources, this finds a placement
    whenever there is one, in gangs of any size.
    """

    def __init__(self, scratch: ScratchAllocation, mark: int) -> None:
        self._scratch, self._mark = scratch, mark
        self._steps = MAX_STEPS
        self._tried: set[PodKey] = set()

    def place_all(self, pods: Iterable[PodInfo]) -> bool:
        """Place all of these pods; return whether they are placed."""
        unplaced = list(pods)
        placed = [pod for placement in self._scratch.since(self._mark) for pod in placement.pods]
        if not self._scratch.volumes.could_all_be_matched((*placed, *unplaced)):
            return False
        for pod in unplaced:
            self._tried = {pod.key}
            if not self._scratch.volumes.concerns(pod) or not self._place(pod):
                return False
        return True

    def _place(self, pod: PodInfo) -> bool:
        scratch = self._scratch
        if not scratch.place(pod.shape, [pod]):
            return True
        if scratch.has_inter_pod_rules(pod.shape):
            return False
        accepted = scratch.nodes.eligible(pod.shape.constraints).accepted
        for other, row in [(p.pods[0], p.row) for p in scratch.since(self._mark)]:
            competes = accepted[row] or scratch.volumes.compete(pod, other, accepted)
            if not competes or other.key in self._tried or not scratch.volumes.concerns(other):
                continue
            if not self._steps:
                return False
            self._steps -= 1
            scratch.take_back(other)
            if not scratch.place(pod.shape, [pod]):
                self._tried.add(other.key)
                if self._place(other):
                    return True
                scratch.take_back(pod)
            scratch.place_on_row(other, row)
        return False


_NO_NODE = NodeName("")


def group_by_shape(pods: Iterable[PodInfo]) -> dict[PodShape, list[PodInfo]]:
    """Group pods by shape, in the order of each shape's first pod."""
    same_shape: dict[PodShape, list[PodInfo]] = {}
    for pod in pods:
        same_shape.setdefault(pod.shape, []).append(pod)
    return same_shape


def placed_pods(placements: Iterable[Placement]) -> Iterator[PodInfo]:
    for placement in placements:
        yield from placement.pods


def place_gang(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    """Place as many of these pods as possible; return those that found no node.

    Pods return to their previous nodes unless that keeps the gang from being placed. A gang with a
    network rule is placed in the closest domain that holds all of it. Devices are of one model if
    some model holds as many pods.
    """
    if gang.network is None:
        if len(pods) == 1 and not (
            gang.preferred_nodes or gang.running or gang.subgroups or gang.role_affinity
        ):
            # All other rules need two pods, or preferred nodes.
            return list(scratch.place(pods[0].shape, pods))
        return place_on_one_device_model(scratch, gang, pods, _place_with_colocation)
    allowed_before = scratch.within
    for domain in allowed_domains(scratch.nodes, gang, gang.network):
        mark = scratch.mark()
        scratch.within = domain.rows if allowed_before is None else allowed_before & domain.rows
        unplaced = place_on_one_device_model(scratch, gang, pods, _place_with_colocation)
        scratch.within = allowed_before
        if gang.satisfied_by(placed_pods(scratch.since(mark))):
            return unplaced
        scratch.rollback(mark)
    if gang.network.hard:
        return list(pods)
    return place_on_one_device_model(scratch, gang, pods, _place_with_colocation)


def place_minimum(scratch: ScratchAllocation, gang: PendingGang) -> list[PodInfo]:
    """Place as many pods as a gang needs to start, of those that find a node.

    The gang's first pods are tried alone, so that no others take their nodes. If one of them fits
    nowhere, others may stand for it; of what was placed then, only the minimum stays.

    Returns:
        The pods that found no node; empty: the gang may start. If it may not, what was placed stays
        for the explanation, and the caller rolls it back.
    """
    mark = scratch.mark()
    unplaced: list[PodInfo] = []
    for count in sorted({gang.needed, len(gang.pending)}):
        scratch.rollback(mark)
        unplaced = place_gang(scratch, gang, gang.pending[:count])
        placements = scratch.since(mark)
        if gang.satisfied_by(placed_pods(placements)):
            if count > gang.needed:
                _keep_minimum(scratch, gang, mark)
            return []
    return unplaced


def _keep_minimum(scratch: ScratchAllocation, gang: PendingGang, mark: int) -> None:
    """Roll back the placed pods that a gang does not need to start."""
    placements = scratch.since(mark)
    rows = {pod.key: placement.row for placement in placements for pod in placement.pods}
    placed: Sequence[PodInfo] = [pod for pod in gang.pending if pod.key in rows]
    if not gang.subgroup_rules:
        placed = required_first(placed, gang.missing_members, dict(gang.missing_roles))
    count = bisect_left(
        range(len(placed)), True, key=lambda number: gang.satisfied_by(placed[:number])
    )
    scratch.rollback(mark)
    # Rules between pods may need a pod that is left out: then all of them stay.
    if not all(scratch.place_on_row(pod, rows[pod.key]) for pod in placed[:count]):
        scratch.rollback(mark)
        for placement in placements:
            for pod in placement.pods:
                scratch.place_on_row(pod, placement.row)


def rows_in_allowed_domains(
    nodes: NodeTable, gang: PendingGang, placed: Iterable[int]
) -> NDArray[np.bool_] | None:
    """Return the rows that the network rule allows for further pods of a gang; None: all rows."""
    if gang.network is None or not gang.network.hard:
        return None
    within = np.zeros(len(nodes.infos), dtype=bool)
    for domain in allowed_domains(nodes, gang, gang.network, placed):
        within |= domain.rows
    return within


def allowed_domains(
    nodes: NodeTable, gang: PendingGang, rule: NetworkTopologyRule, placed: Iterable[int] = ()
) -> list[TopologyDomain]:
    """Return the domains that contain all placed members: closest tier first, then fullest."""
    domains = nodes.domains() if not rule.label else _labelled_domains(nodes, rule.label)
    highest = highest_tier(rule, nodes.hypernodes) if not rule.label else 0
    running_rows = (nodes.rows.get(pod.node or _NO_NODE) for pod in gang.running)
    running = [*placed, *(row for row in running_rows if row is not None)]
    allowed = [
        domain
        for domain in domains
        if (domain.tier <= highest or not rule.hard) and all(domain.rows[row] for row in running)
    ]
    free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
    fullness = {d.name: float(free[:, d.rows].sum()) for d in allowed}
    return sorted(allowed, key=lambda domain: (domain.tier, fullness[domain.name], domain.name))


def _labelled_domains(nodes: NodeTable, label: str) -> list[TopologyDomain]:
    numbers = nodes.topology_domains_of(label)
    return [
        TopologyDomain(f"{label} {number}", 0, numbers == number)
        for number in range(int(numbers.max(initial=-1)) + 1)
    ]


def subgroup_as_gang(gang: PendingGang, subgroup: Subgroup, pods: Sequence[PodInfo]) -> PendingGang:
    placed = len(subgroup.pending) - len(pods)
    return replace(
        gang,
        pending=tuple(pods),
        missing_members=max(0, subgroup.missing - placed),
        missing_roles=(),
        subgroup_rules=(),
        subgroups=(),
        subgroup_prefix=0,
        running=subgroup.running,
        network=subgroup.network,
    )


def next_subgroup(
    gang: PendingGang, left: Iterable[PodInfo]
) -> tuple[Subgroup | None, list[PodInfo]]:
    """Return the subgroup of the first pod and its pods in ``left``; None: no subgroup."""
    pods = list(left)
    key = subgroup_key(gang.subgroup_rules, pods[0])
    subgroup = next((subgroup for subgroup in gang.subgroups if subgroup.key == key), None)
    if subgroup is None:
        return None, pods[:1]
    return subgroup, [pod for pod in pods if subgroup_key(gang.subgroup_rules, pod) == key]


def place_subgroup(
    scratch: ScratchAllocation,
    gang: PendingGang,
    subgroup: Subgroup | None,
    pods: Sequence[PodInfo],
) -> list[PodInfo]:
    """Place a complete subgroup, or none of it; return the pods that remain."""
    if subgroup is None:
        return _place_remaining(scratch, gang, pods, frozenset())
    network = subgroup.network
    if network is not None and network.hard and len(pods) < len(subgroup.pending):
        # Its other pods were placed in this cycle: their domain is known in the next one.
        return list(pods)
    return _place_complete_subgroup(scratch, subgroup_as_gang(gang, subgroup, pods), pods)


def _place_complete_subgroup(
    scratch: ScratchAllocation, small: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    mark = scratch.mark()
    left = place_gang(scratch, small, pods)
    if small.satisfied_by(placed_pods(scratch.since(mark))):
        return left
    scratch.rollback(mark)
    return list(pods)


def _place_subgroups(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    """Place subgroups, each completely or not at all; then pods of no subgroup."""
    remaining = {pod.key: pod for pod in pods}
    unplaced: list[PodInfo] = []
    for subgroup in gang.subgroups:
        own = [pod for pod in subgroup.pending if remaining.pop(pod.key, None) is not None]
        if own:
            unplaced += _place_complete_subgroup(
                scratch, subgroup_as_gang(gang, subgroup, own), own
            )
    return unplaced + _place_remaining(scratch, gang, list(remaining.values()), frozenset())


def _place_with_colocation(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    return place_colocated(scratch, gang, pods, _place_within_rows, placing_order)


def _place_within_rows(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> list[PodInfo]:
    if gang.subgroups:
        return _place_subgroups(scratch, gang, pods)
    for arrange in (_place_on_preferred_nodes, _place_role_buckets):
        mark = scratch.mark()
        settled = arrange(scratch, gang, pods)
        if settled:
            unplaced = _place_remaining(scratch, gang, pods, settled)
            if gang.satisfied_by(placed_pods(scratch.since(mark))):
                return unplaced
        scratch.rollback(mark)
    mark = scratch.mark()
    unplaced = _place_remaining(scratch, gang, pods, frozenset())
    if not unplaced or gang.satisfied_by(placed_pods(scratch.since(mark))):
        return unplaced
    if _Moves(scratch, mark).place_all(unplaced):
        return []
    scratch.rollback(mark)
    if place_by_backtracking(scratch, gang, pods):
        return []
    return _place_remaining(scratch, gang, pods, frozenset())


def _place_role_buckets(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> set[PodKey]:
    """Place pods of affine roles on one node each; return the placed pods."""
    if gang.role_affinity is None:
        return set()
    taken: dict[int, set[str]] = {}
    settled: set[PodKey] = set()
    for bucket in sorted(
        role_buckets(pods, gang.role_affinity), key=lambda bucket: -len(bucket.pods)
    ):
        roles = {pod.role for pod in bucket.pods}
        hostile = {role for own in roles for role in anti_affine_roles(own, gang.role_affinity)}
        avoid = {
            row
            for row, allocatable in taken.items()
            if allocatable & (hostile | (roles if bucket.exclusive else set()))
        }
        row = scratch.place_together(bucket.pods, avoid)
        rows = {row} if row is not None else _place_bucket_in_domain(scratch, bucket.pods, avoid)
        if not rows:
            return set()
        for used_row in rows:
            taken.setdefault(used_row, set()).update(roles)
        settled |= {pod.key for pod in bucket.pods}
    return settled


def _place_bucket_in_domain(
    scratch: ScratchAllocation, pods: Sequence[PodInfo], avoid: Set[int]
) -> set[int]:
    """Place pods that no single node holds in the closest network domain that does; return the
    rows.
    """
    allowed_before = scratch.within
    for domain in scratch.nodes.domains():
        mark = scratch.mark()
        within = domain.rows.copy() if allowed_before is None else domain.rows & allowed_before
        within[list(avoid)] = False
        scratch.within = within
        unplaced = [
            pod
            for shape, same_shape in group_by_shape(pods).items()
            for pod in scratch.place(shape, same_shape)
        ]
        scratch.within = allowed_before
        if not unplaced:
            return {placement.row for placement in scratch.since(mark)}
        scratch.rollback(mark)
    return set()


def _place_remaining(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo], settled: Set[PodKey]
) -> list[PodInfo]:
    unplaced: list[PodInfo] = []
    for shape, same_shape in placing_order(scratch.nodes, gang, pods):
        left = [pod for pod in same_shape if pod.key not in settled] if settled else same_shape
        unplaced += scratch.place(shape, left)
    return unplaced


def _place_on_preferred_nodes(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> set[PodKey]:
    if not gang.preferred_nodes:
        return set()
    rows = {name: scratch.nodes.rows.get(node) for name, node in gang.preferred_nodes}
    return {
        pod.key
        for pod in pods
        if (row := rows.get(pod.key)) is not None and scratch.place_on_row(pod, row)
    }


def placing_order(
    nodes: NodeTable, gang: PendingGang, pods: Sequence[PodInfo]
) -> list[tuple[PodShape, list[PodInfo]]]:
    """Return pods by shape: fewest eligible nodes first, then largest; extra pods last."""
    ordered: list[tuple[PodShape, list[PodInfo]]] = []
    for subgroup in (pods[: gang.needed], pods[gang.needed :]):
        same_shape = list(group_by_shape(subgroup).items())
        if len(same_shape) > 1:
            same_shape.sort(key=lambda item: _placing_key(nodes, item[0]))
        ordered += same_shape
    return ordered


def _placing_key(nodes: NodeTable, shape: PodShape) -> tuple[int, float]:
    """Sort key: the number of eligible nodes, and the negative size of the request."""
    size = 0.0
    for column, amount, weight in nodes.demand(shape.request).terms:
        if weight:
            size += weight * amount / max(1, int(nodes.allocatable[column].max(initial=1)))
    return int(np.count_nonzero(nodes.eligible(shape.constraints).accepted)), -size


def unavailable_message(
    scratch: ScratchAllocation, pod: PodInfo, shortages: Mapping[str, int] | None = None
) -> str:
    """Return, in Kubernetes' wording, why no node accepts ``pod`` now.

    Args:
        shortages: the shortages of its shape, if the caller knows them.
    """
    nodes = scratch.nodes
    shape = pod.shape
    refusals = nodes.count_filter_messages(shape.constraints)
    if scratch.has_inter_pod_rules(shape):
        refusals += inter_pod.count_inter_pod_messages(nodes, pod, scratch.tentative())
    refusals = refusals + scratch.count_claim_messages(pod)
    if shortages is None:
        shortages = scratch.shortages(shape)
    return messages.availability_message(len(nodes), refusals, shortages)


def claims_message(scratch: ScratchAllocation, pod: PodInfo) -> str:
    """Return what would help a pod that finds a node, but not its volumes or devices; empty: it has
    them.
    """
    refusals = scratch.count_claim_messages(pod)
    if not refusals:
        return ""
    if CANNOT_ALLOCATE in refusals:
        claims = scratch.nodes.devices.unallocated(pod)
        return messages.devices_message([claim.key for claim in claims])
    holders = [holder.key for holder in scratch.volumes.holders(pod)]
    return messages.volumes_message(refusals, scratch.volumes.claims_of(pod), holders)


def gang_capacity(scratch: ScratchAllocation, gang: PendingGang) -> GangCapacity:
    """Return the request of a gang, and what the nodes that accept any of its pods have, reserved
    amounts included.
    """
    nodes = scratch.nodes
    asked = {name: n for name, n in _least_request(gang).items() if messages.is_amount(name)}
    accepts = accepting_rows(nodes, gang)
    columns = [nodes.columns[name] for name in asked]
    free = np.maximum(scratch.free_without_reservations()[columns], 0) * accepts
    allocatable = nodes.allocatable[columns] * accepts
    return GangCapacity(
        requested=asked,
        free=dict(zip(asked, free.sum(axis=1).tolist(), strict=True)),
        max_node_free=dict(zip(asked, free.max(axis=1, initial=0).tolist(), strict=True)),
        total=dict(zip(asked, allocatable.sum(axis=1).tolist(), strict=True)),
        eligible_nodes=int(np.count_nonzero(accepts)),
    )


def _least_request(gang: PendingGang) -> dict[str, int]:
    """Return the least of each resource with which a gang may start: any of its pods will do, while
    ``requested`` is the sum of the first ones.
    """
    if len({pod.shape for pod in gang.pending}) == 1:
        return dict(gang.requested)
    pods = [dict(pod.shape.request) for pod in gang.pending]
    return {
        name: sum(sorted(pod.get(name, 0) for pod in pods)[: gang.needed])
        for name, _ in gang.requested
    }


def accepting_rows(nodes: NodeTable, gang: PendingGang) -> NDArray[np.bool_]:
    """Return a mask of the rows whose nodes accept any pending pod of a gang."""
    accepts = np.zeros(len(nodes.infos), dtype=bool)
    for constraints in {pod.shape.constraints for pod in gang.pending}:
        accepts |= nodes.eligible(constraints).accepted
    return accepts
