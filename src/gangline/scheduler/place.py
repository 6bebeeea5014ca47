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

from gangline.scheduler import reasons, related
from gangline.scheduler.device_models import place_on_one_model
from gangline.scheduler.domains import Domain, highest_tier
from gangline.scheduler.model import NetworkRule, NodeName, PodFacts, PodKey, Promise, Shape
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.parts import Part, part_of
from gangline.scheduler.plugins.task_topology import buckets, enemies
from gangline.scheduler.reasons import Room
from gangline.scheduler.search import place_by_search
from gangline.scheduler.side_by_side import place_side_by_side
from gangline.scheduler.trial import Placement, Trial
from gangline.scheduler.units import Unit

MAX_LIKES = 4096
_NOWHERE = NodeName("")


def by_shape(pods: Iterable[PodFacts]) -> dict[Shape, list[PodFacts]]:
    """Group pods by shape, in the order of each shape's first pod."""
    alike: dict[Shape, list[PodFacts]] = {}
    for pod in pods:
        alike.setdefault(pod.shape, []).append(pod)
    return alike


def pods_of(placements: Iterable[Placement]) -> Iterator[PodFacts]:
    for placement in placements:
        yield from placement.pods


def place_unit(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Place as many of these pods as possible; return those that found no node.

    Pods return to their previous nodes unless that keeps the gang from being placed. A gang with a
    network rule is placed in the closest domain that holds all of it. Devices are of one model if
    some model holds as many pods.
    """
    if unit.network is None:
        if len(pods) == 1 and not (unit.places or unit.running or unit.parts or unit.roles):
            # All other rules need two pods, or previous nodes.
            return list(trial.place(pods[0].shape, pods))
        return place_on_one_model(trial, unit, pods, _place_arranged)
    outer = trial.within
    for domain in _allowed_domains(trial.nodes, unit, unit.network):
        mark = trial.mark()
        trial.within = domain.rows if outer is None else outer & domain.rows
        unfit = place_on_one_model(trial, unit, pods, _place_arranged)
        trial.within = outer
        if unit.satisfied_by(pods_of(trial.since(mark))):
            return unfit
        trial.rollback(mark)
    if unit.network.hard:
        return list(pods)
    return place_on_one_model(trial, unit, pods, _place_arranged)


def rows_near(nodes: NodeTable, unit: Unit, placed: Iterable[int]) -> NDArray[np.bool_] | None:
    """Return the rows that the network rule allows for further pods of a gang; None: all rows."""
    if unit.network is None or not unit.network.hard:
        return None
    within = np.zeros(len(nodes.facts), dtype=bool)
    for domain in _allowed_domains(nodes, unit, unit.network, placed):
        within |= domain.rows
    return within


def _allowed_domains(
    nodes: NodeTable, unit: Unit, rule: NetworkRule, placed: Iterable[int] = ()
) -> list[Domain]:
    """Return the domains that contain all placed members: closest tier first, then fullest."""
    highest = highest_tier(rule, nodes.hypernodes)
    known = (nodes.rows.get(pod.node or _NOWHERE) for pod in unit.running)
    running = [*placed, *(row for row in known if row is not None)]
    allowed = [
        domain
        for domain in nodes.domains()
        if (domain.tier <= highest or not rule.hard) and all(domain.rows[row] for row in running)
    ]
    free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
    fullness = {d.name: float(free[:, d.rows].sum()) for d in allowed}
    return sorted(allowed, key=lambda domain: (domain.tier, fullness[domain.name], domain.name))


def part_unit(unit: Unit, part: Part, pods: Sequence[PodFacts]) -> Unit:
    """Return a subgroup as a gang with these pods to place."""
    placed = len(part.waiting) - len(pods)
    return replace(
        unit,
        waiting=tuple(pods),
        missing=max(0, part.missing - placed),
        missing_roles=(),
        rules=(),
        parts=(),
        prefix=0,
        running=part.running,
        network=part.network,
    )


def next_part(unit: Unit, left: Iterable[PodFacts]) -> tuple[Part | None, list[PodFacts]]:
    """Return the subgroup of the first pod and its pods in ``left``; None: no subgroup."""
    pods = list(left)
    key = part_of(unit.rules, pods[0])
    part = next((part for part in unit.parts if part.key == key), None)
    if part is None:
        return None, pods[:1]
    return part, [pod for pod in pods if part_of(unit.rules, pod) == key]


def place_part(
    trial: Trial, unit: Unit, part: Part | None, pods: Sequence[PodFacts]
) -> list[PodFacts]:
    """Place a complete subgroup, or none of it; return the pods that remain."""
    if part is None:
        return _place_anew(trial, unit, pods, frozenset())
    network = part.network
    if network is not None and network.hard and len(pods) < len(part.waiting):
        # Its other pods were placed in this cycle: their domain is known in the next one.
        return list(pods)
    return _place_small(trial, part_unit(unit, part, pods), pods)


def _place_small(trial: Trial, small: Unit, pods: Sequence[PodFacts]) -> list[PodFacts]:
    mark = trial.mark()
    left = place_unit(trial, small, pods)
    if small.satisfied_by(pods_of(trial.since(mark))):
        return left
    trial.rollback(mark)
    return list(pods)


def _place_parts(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Place subgroups, each completely or not at all; then pods of no subgroup."""
    remaining = {pod.key: pod for pod in pods}
    unfit: list[PodFacts] = []
    for part in unit.parts:
        own = [pod for pod in part.waiting if remaining.pop(pod.key, None) is not None]
        if own:
            unfit += _place_small(trial, part_unit(unit, part, own), own)
    return unfit + _place_anew(trial, unit, list(remaining.values()), frozenset())


def _place_arranged(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> list[PodFacts]:
    return place_side_by_side(trial, unit, pods, _place_anywhere, placing_order)


def _place_anywhere(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> list[PodFacts]:
    if unit.parts:
        return _place_parts(trial, unit, pods)
    for arrange in (_put_back, _put_together):
        mark = trial.mark()
        settled = arrange(trial, unit, pods)
        if settled:
            unfit = _place_anew(trial, unit, pods, settled)
            if unit.satisfied_by(pods_of(trial.since(mark))):
                return unfit
        trial.rollback(mark)
    mark = trial.mark()
    unfit = _place_anew(trial, unit, pods, frozenset())
    if not unfit or unit.satisfied_by(pods_of(trial.since(mark))):
        return unfit
    trial.rollback(mark)
    if place_by_search(trial, unit, pods):
        return []
    return _place_anew(trial, unit, pods, frozenset())


def _put_together(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> set[PodKey]:
    """Place pods of affine roles on one node each; return the placed pods."""
    if unit.roles is None:
        return set()
    taken: dict[int, set[str]] = {}
    settled: set[PodKey] = set()
    for bucket in sorted(buckets(pods, unit.roles), key=lambda bucket: -len(bucket.pods)):
        roles = {pod.role for pod in bucket.pods}
        hostile = {role for own in roles for role in enemies(own, unit.roles)}
        avoid = {
            row
            for row, there in taken.items()
            if there & (hostile | (roles if bucket.alone else set()))
        }
        row = trial.place_together(bucket.pods, avoid)
        rows = {row} if row is not None else _put_in_one_domain(trial, bucket.pods, avoid)
        if not rows:
            return set()
        for each in rows:
            taken.setdefault(each, set()).update(roles)
        settled |= {pod.key for pod in bucket.pods}
    return settled


def _put_in_one_domain(trial: Trial, pods: Sequence[PodFacts], avoid: Set[int]) -> set[int]:
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
            pod for shape, alike in by_shape(pods).items() for pod in trial.place(shape, alike)
        ]
        trial.within = outer
        if not unfit:
            return {placement.row for placement in trial.since(mark)}
        trial.rollback(mark)
    return set()


def _place_anew(
    trial: Trial, unit: Unit, pods: Sequence[PodFacts], settled: Set[PodKey]
) -> list[PodFacts]:
    unfit: list[PodFacts] = []
    for shape, alike in placing_order(trial.nodes, unit, pods):
        left = [pod for pod in alike if pod.key not in settled] if settled else alike
        unfit += trial.place(shape, left)
    return unfit


def _put_back(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> set[PodKey]:
    """Place pods on their previous nodes; return the placed pods."""
    if not unit.places:
        return set()
    rows = {name: trial.nodes.rows.get(node) for name, node in unit.places}
    return {
        pod.key for pod in pods if (row := rows.get(pod.key)) is not None and trial.put(pod, row)
    }


def placing_order(
    nodes: NodeTable, unit: Unit, pods: Sequence[PodFacts]
) -> list[tuple[Shape, list[PodFacts]]]:
    """Return pods by shape: fewest eligible nodes first, then largest; extra pods last."""
    ordered: list[tuple[Shape, list[PodFacts]]] = []
    for part in (pods[: unit.needed], pods[unit.needed :]):
        alike = list(by_shape(part).items())
        if len(alike) > 1:
            alike.sort(key=lambda item: _choice(nodes, item[0]))
        ordered += alike
    return ordered


def _choice(nodes: NodeTable, shape: Shape) -> tuple[int, float]:
    """Sort key: the number of eligible nodes, and the negative size of the request."""
    size = 0.0
    for column, amount, weight in nodes.demand(shape.request).parts:
        if weight:
            size += weight * amount / max(1, int(nodes.allocatable[column].max(initial=1)))
    return int(np.count_nonzero(nodes.eligible(shape.constraints).accepts)), -size


class Planner:
    """Plans where gangs could start once running gangs have ended.

    Pods of no gang are assumed to run for ever, and so are the gang's own members. Nodes with the
    most free resources now come first: there a gang can start soonest.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._liking: NDArray[np.float64] | None = None
        self._drained: Trial | None = None
        """The allocation without running gangs, shared by all pending gangs that have no running
        members.
        """

    def plan(self, unit: Unit, promise: Promise | None = None) -> list[Placement] | None:
        """Return where a gang could start; None: nowhere.

        The plan keeps the nodes of an earlier reservation where that is still possible. A plan that
        moved whenever another node looks better might never come true.
        """
        drained = self._trial(unit)
        if promise is not None:
            unit = replace(unit, places=promise.places)
        for count in sorted({unit.needed, len(unit.waiting)}):
            place_unit(drained, unit, unit.waiting[:count])
            plan = drained.since(0)
            drained.rollback(0)
            if unit.satisfied_by(pods_of(plan)):
                return plan
        return None

    def is_possible(self, unit: Unit) -> bool:
        """Return whether a gang could start at all once running gangs have ended."""
        nodes = self._nodes
        if unit.running or unit.related or nodes.repelling:
            return self.plan(unit) is not None
        known = nodes.possible.get(unit.likeness)
        if known is None:
            if len(nodes.possible) >= MAX_LIKES:
                nodes.possible.clear()
            known = nodes.possible[unit.likeness] = self.plan(unit) is not None
        return known

    def _trial(self, unit: Unit) -> Trial:
        if unit.running:
            return self._new_trial(unit.running)
        if self._drained is None:
            self._drained = self._new_trial(())
        return self._drained

    def _new_trial(self, running: Iterable[PodFacts]) -> Trial:
        nodes = self._nodes
        if self._liking is None:
            now_free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
            self._liking = now_free.mean(axis=0)
        lasting = nodes.lasting.copy()
        for pod in running:
            row = nodes.rows.get(pod.node) if pod.node is not None else None
            if row is not None:
                for column, amount, _ in nodes.demand(pod.shape.request).parts:
                    lasting[column, row] += amount
        return Trial(nodes, nodes.allocatable - lasting, liking=self._liking)


def availability(trial: Trial, pod: PodFacts, shortages: Mapping[str, int] | None = None) -> str:
    """Return, in Kubernetes' wording, why no node accepts ``pod`` now.

    Args:
        trial: the allocation with the free amounts.
        pod: the pod.
        shortages: the shortages of its shape, if the caller knows them.
    """
    nodes = trial.nodes
    shape = pod.shape
    refusals = nodes.refusals(shape.constraints)
    if related.is_related(nodes, pod):
        refusals += related.refusals(nodes, pod, trial.on_paper())
    if shortages is None:
        shortages = trial.shortages(shape)
    return reasons.availability(len(nodes), refusals, shortages)


def room_for(trial: Trial, unit: Unit) -> Room:
    """Return the request of a gang and the resources of the nodes that accept any of its pods."""
    nodes = trial.nodes
    total = reasons.total_request(unit.waiting)
    asked = {name: amount for name, amount in total.items() if reasons.is_amount(name)}
    accepts = np.zeros(len(nodes.facts), dtype=bool)
    for constraints in {pod.shape.constraints for pod in unit.waiting}:
        accepts |= nodes.eligible(constraints).accepts
    columns = [nodes.columns[name] for name in asked]
    free = np.maximum(trial.free[columns], 0) * accepts
    there = nodes.allocatable[columns] * accepts
    return Room(
        asked=asked,
        free=dict(zip(asked, free.sum(axis=1).tolist(), strict=True)),
        largest=dict(zip(asked, free.max(axis=1, initial=0).tolist(), strict=True)),
        total=dict(zip(asked, there.sum(axis=1).tolist(), strict=True)),
        eligible=int(np.count_nonzero(accepts)),
    )
