"""Inter-pod rules applied to the node table, including tentatively placed pods."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.plugins import inter_pod
from gangline.scheduler.plugins.inter_pod import (
    Counts,
    Mask,
    PodSelection,
    required_anti_affinity,
)
from gangline.scheduler.plugins.scores import Scores
from gangline.scheduler.types import (
    PlacementConstraints,
    PodInfo,
    PodKey,
    SpreadTerm,
    TolerationInfo,
)

TentativePods = Sequence[tuple[PodInfo, int]]
"""Tentatively placed pods and their rows."""


class StayingPods:
    """The running pods that stay when all others have ended.

    Args:
        list_pods: returns them; called if a pod has rules, because there may be many.
    """

    def __init__(self, nodes: NodeTable, list_pods: Callable[[], Iterable[PodInfo]]) -> None:
        self._nodes, self._list_pods = nodes, list_pods
        self._size = len(nodes.infos)
        self._counts: dict[PodSelection, Counts] = {}
        self._owners: dict[PodSelection, Counts] | None = None

    @cached_property
    def _pods(self) -> TentativePods:
        rows = self._nodes.rows
        pods = self._list_pods()
        return [(p, rows[p.node]) for p in pods if p.node is not None and p.node in rows]

    def count(self, selection: PodSelection) -> Counts:
        """Count the selected pods on each row."""
        counts = self._counts.get(selection)
        if counts is None:
            counts = self._counts[selection] = np.zeros(self._size, dtype=np.int64)
            for pod, row in self._pods:
                counts[row] += selection.matches(pod)
        return counts

    def anti_affinity_owners(self) -> dict[PodSelection, Counts]:
        """Return the required anti-affinity terms of the pods, with their owners on each row."""
        if self._owners is None:
            self._owners = {}
            for pod, row in self._pods:
                for owner in required_anti_affinity(pod):
                    if owner not in self._owners:
                        self._owners[owner] = np.zeros(self._size, dtype=np.int64)
                    self._owners[owner][row] += 1
        return self._owners


_TOLERATES_ALL = (TolerationInfo(operator="Exists"),)
FULL_WEIGHT = 100
"""The maximal weight in Kubernetes."""


def has_inter_pod_rules(nodes: NodeTable, pod: PodInfo) -> bool:
    if pod.shape.constraints.inter_pod is not None:
        return True
    return any(owner.matches(pod) for owner in nodes.anti_affinity_owners)


def inter_pod_mask(
    nodes: NodeTable,
    pod: PodInfo,
    placed: TentativePods,
    gone: TentativePods = (),
    staying: StayingPods | None = None,
) -> Mask:
    """Return the rows that inter-pod rules allow.

    Args:
        gone: running pods that count as ended.
        staying: the running pods that do not count as ended; None: all but ``gone``. A pod may be
            near others all the same: its affinity to them holds as long as they run.
    """
    mask = np.ones(len(nodes.infos), dtype=bool)
    for _, rows in _rules(nodes, pod, placed, gone, staying):
        mask &= rows
    return mask


def count_inter_pod_messages(nodes: NodeTable, pod: PodInfo, placed: TentativePods) -> Counter[str]:
    """Return the number of rows that inter-pod rules exclude, by the first message of each."""
    counts: Counter[str] = Counter()
    left = nodes.eligible(pod.shape.constraints).accepted.copy()
    for why, rows in _rules(nodes, pod, placed):
        counts[why] += int(np.count_nonzero(left & ~rows))
        left &= rows
    return +counts


def inter_pod_messages_by_row(nodes: NodeTable, pod: PodInfo) -> dict[int, str]:
    """Return why running pods keep a pod off rows, by row."""
    messages: dict[int, str] = {}
    for why, rows in _rules(nodes, pod, ()):
        for row in np.flatnonzero(~rows).tolist():
            messages.setdefault(row, why)
    return messages


def inter_pod_score(nodes: NodeTable, pod: PodInfo, placed: TentativePods) -> Scores:
    """Return the weighted score of preferred inter-pod rules for each row."""
    score: Scores = np.zeros(len(nodes.infos))
    relations = pod.shape.constraints.inter_pod
    if relations is None:
        return score
    for sign, terms in ((1.0, relations.affinity), (-1.0, relations.anti_affinity)):
        for term in terms:
            if term.weight:
                has_match = _count_in_domains(nodes, PodSelection.of(pod, term), placed) > 0
                score += nodes.weights.pod_affinity * sign * term.weight / FULL_WEIGHT * has_match
    for spread in relations.spread:
        if not spread.hard:
            selection = PodSelection.of(pod, spread.pods, lasting_only=True)
            seen = _count_in_domains(nodes, selection, placed)
            score -= nodes.weights.spreading * seen / max(1, int(seen.max(initial=0)))
    return score


def _count_in_domains(nodes: NodeTable, selection: PodSelection, placed: TentativePods) -> Counts:
    counts = _count_selected(nodes, selection, placed)
    return inter_pod.count_per_domain(counts, nodes.topology_domains_of(selection.topology_key))


def blocking_pods(
    nodes: NodeTable, pod: PodInfo, row: int, gone: Iterable[PodKey] = ()
) -> list[PodInfo]:
    """Return the running pods whose anti-affinity, or that of ``pod``, keeps it off a row.

    Args:
        gone: keys of running pods that count as ended.
    """
    blocking: dict[PodKey, PodInfo] = {}
    for selection in required_anti_affinity(pod):
        rows = np.flatnonzero(nodes.count_pods(selection)).tolist()
        for other in _pods_in_domain(nodes, row, selection.topology_key, rows):
            if selection.matches(other):
                blocking[other.key] = other
    for owner, owners in nodes.anti_affinity_owners.items():
        if owner.matches(pod):
            for other in _pods_in_domain(nodes, row, owner.topology_key, list(owners)):
                if owner in required_anti_affinity(other):
                    blocking[other.key] = other
    skipped = set(gone)
    return [blocking[key] for key in sorted(blocking) if key not in skipped]


def _pods_in_domain(
    nodes: NodeTable, row: int, topology_key: str, rows: Sequence[int]
) -> Iterator[PodInfo]:
    parts = nodes.topology_domains_of(topology_key)
    if parts[row] < 0:
        return
    for candidate in rows:
        if parts[candidate] == parts[row]:
            yield from nodes.pods_by_node.get(nodes.name_of(candidate), {}).values()


def _rules(
    nodes: NodeTable,
    pod: PodInfo,
    placed: TentativePods,
    gone: TentativePods = (),
    staying: StayingPods | None = None,
) -> Iterator[tuple[str, Mask]]:
    relations = pod.shape.constraints.inter_pod
    if relations is not None:
        if terms := [term for term in relations.affinity if not term.weight]:
            selection = PodSelection.of(pod, *terms)
            counts = _count_selected(nodes, selection, placed, gone)
            ended = np.zeros_like(counts)
            for other, row in gone:
                ended[row] += selection.matches(other)
            domains = [nodes.topology_domains_of(term.topology_key) for term in terms]
            own = selection.matches(pod)
            rows = inter_pod.affinity_mask(counts, domains, own, ended)
            if staying is not None:
                # A pod that matches itself may be the first one after the others have ended.
                counts = _count_selected(nodes, selection, placed, gone, staying)
                rows |= inter_pod.affinity_mask(counts, domains, own, np.zeros_like(counts))
            yield inter_pod.AFFINITY_MISMATCH, rows
        for selection in required_anti_affinity(pod):
            counts = _count_selected(nodes, selection, placed, gone, staying)
            parts = nodes.topology_domains_of(selection.topology_key)
            yield (
                inter_pod.ANTI_AFFINITY_MISMATCH,
                inter_pod.anti_affinity_mask(counts, parts),
            )
        hard = [spread for spread in relations.spread if spread.hard]
        for spread in hard:
            selection = PodSelection.of(pod, spread.pods, lasting_only=True)
            counts = _count_selected(nodes, selection, placed, gone, staying)
            parts = nodes.topology_domains_of(spread.pods.topology_key)
            eligible = _spread_domains(nodes, pod, spread, hard)
            rows = inter_pod.spread_mask(spread, counts, parts, eligible, selection.matches(pod))
            yield inter_pod.SPREAD_VIOLATED, rows
    for owner, counts in _anti_affinity_owners(nodes, pod, placed, gone, staying):
        parts = nodes.topology_domains_of(owner.topology_key)
        yield inter_pod.EXISTING_ANTI_AFFINITY, inter_pod.anti_affinity_mask(counts, parts)


def _spread_domains(
    nodes: NodeTable, pod: PodInfo, spread: SpreadTerm, hard: Iterable[SpreadTerm]
) -> Mask:
    """Return the rows that a constraint counts: they have the labels of all constraints, and the
    policies of the constraint do not exclude them.
    """
    counted = np.ones(len(nodes.infos), dtype=bool)
    for other in hard:
        counted &= nodes.topology_domains_of(other.pods.topology_key) >= 0
    constraints = pod.shape.constraints
    if spread.honors_affinity:
        only_affinity = PlacementConstraints(
            selector=constraints.selector,
            required=constraints.required,
            tolerations=_TOLERATES_ALL,
            required_node_terms=constraints.required_node_terms,
        )
        counted &= nodes.eligible(only_affinity).accepted
    if spread.honors_taints:
        only_taints = PlacementConstraints(tolerations=constraints.tolerations)
        counted &= nodes.eligible(only_taints).accepted
    return counted


def _count_selected(
    nodes: NodeTable,
    selection: PodSelection,
    placed: TentativePods,
    gone: TentativePods = (),
    staying: StayingPods | None = None,
) -> Counts:
    """Count the selected pods on each row."""
    running = nodes.count_pods(selection) if staying is None else staying.count(selection)
    counts = running.copy()
    for other, row in placed:
        if selection.matches(other):
            counts[row] += 1
    for other, row in gone:
        if selection.matches(other):
            counts[row] -= 1
    return counts


def _anti_affinity_owners(
    nodes: NodeTable,
    pod: PodInfo,
    placed: TentativePods,
    gone: TentativePods = (),
    staying: StayingPods | None = None,
) -> Iterator[tuple[PodSelection, Counts]]:
    """Yield the anti-affinity terms of other pods that select this pod, and the rows of their
    owners.
    """
    owners: dict[PodSelection, Counts] = {}
    if staying is not None:
        running = staying.anti_affinity_owners()
        owners = {owner: rows.copy() for owner, rows in running.items() if owner.matches(pod)}
    for owner, rows in nodes.anti_affinity_owners.items() if staying is None else ():
        if owner.matches(pod):
            owners[owner] = np.zeros(len(nodes.infos), dtype=np.int64)
            owners[owner][list(rows)] = list(rows.values())
    for other, row in gone:
        for owner in required_anti_affinity(other):
            if owner in owners:
                owners[owner][row] -= 1
    for other, row in placed:
        for owner in required_anti_affinity(other):
            if owner.matches(pod):
                counts = owners.setdefault(owner, np.zeros(len(nodes.infos), dtype=np.int64))
                counts[row] += 1
    yield from owners.items()
