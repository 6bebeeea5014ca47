"""Inter-pod rules applied to the node table, including tentatively placed pods."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gangline.scheduler.model import PodFacts, PodTerm
from gangline.scheduler.nodes import NodeTable
from gangline.scheduler.plugins import pod_relations
from gangline.scheduler.plugins.node_scores import Scores
from gangline.scheduler.plugins.pod_relations import Counts, Mask, Pods

Placed = Sequence[tuple[PodFacts, int]]
"""Tentatively placed pods and their rows."""

FULL_WEIGHT = 100
"""The maximal weight in Kubernetes."""


def is_related(nodes: NodeTable, pod: PodFacts) -> bool:
    """Return whether inter-pod rules apply to a pod."""
    if pod.shape.constraints.relations is not None:
        return True
    return any(owner.matches(pod) for owner in nodes.repelling)


def allowed(nodes: NodeTable, pod: PodFacts, placed: Placed) -> Mask:
    """Return a mask of the rows that inter-pod rules allow."""
    mask = np.ones(len(nodes.facts), dtype=bool)
    for _, rows in _rules(nodes, pod, placed):
        mask &= rows
    return mask


def refusals(nodes: NodeTable, pod: PodFacts, placed: Placed) -> Counter[str]:
    """Return the number of rows that inter-pod rules exclude, by the first message of each."""
    found: Counter[str] = Counter()
    left = nodes.eligible(pod.shape.constraints).accepts.copy()
    for why, rows in _rules(nodes, pod, placed):
        found[why] += int(np.count_nonzero(left & ~rows))
        left &= rows
    return +found


def reasons_by_row(nodes: NodeTable, pod: PodFacts) -> dict[int, str]:
    """Return why running pods keep a pod off rows, by row."""
    found: dict[int, str] = {}
    for why, rows in _rules(nodes, pod, ()):
        for row in np.flatnonzero(~rows).tolist():
            found.setdefault(row, why)
    return found


def liking(nodes: NodeTable, pod: PodFacts, placed: Placed) -> Scores:
    """Return the weighted score of preferred inter-pod rules for each row."""
    score: Scores = np.zeros(len(nodes.facts))
    relations = pod.shape.constraints.relations
    if relations is None:
        return score
    for sign, terms in ((1.0, relations.near), (-1.0, relations.apart)):
        for term in terms:
            if term.weight:
                there = pod_relations.in_parts(*_seen(nodes, pod, term, placed)) > 0
                score += nodes.weights.pod_affinity * sign * term.weight / FULL_WEIGHT * there
    for spread in relations.spread:
        if not spread.hard:
            seen = pod_relations.in_parts(*_seen(nodes, pod, spread.pods, placed))
            score -= nodes.weights.spreading * seen / max(1, int(seen.max(initial=0)))
    return score


def _rules(nodes: NodeTable, pod: PodFacts, placed: Placed) -> Iterator[tuple[str, Mask]]:
    relations = pod.shape.constraints.relations
    if relations is not None:
        for term in relations.near:
            if not term.weight:
                counts, parts = _seen(nodes, pod, term, placed)
                rows = pod_relations.near(counts, parts, _meant(pod, term).matches(pod))
                yield pod_relations.NOT_NEAR, rows
        for term in relations.apart:
            if not term.weight:
                yield pod_relations.NOT_APART, pod_relations.apart(*_seen(nodes, pod, term, placed))
        for spread in relations.spread:
            if spread.hard:
                counts, parts = _seen(nodes, pod, spread.pods, placed)
                itself = _meant(pod, spread.pods).matches(pod)
                eligible = nodes.eligible(pod.shape.constraints).accepts
                rows = pod_relations.even(spread, counts, parts, eligible, itself)
                yield pod_relations.UNEVEN, rows
    for owner, counts in _repelling(nodes, pod, placed):
        parts = nodes.parts(owner.term.topology_key)
        yield pod_relations.REPELLED, pod_relations.apart(counts, parts)


def _seen(
    nodes: NodeTable, pod: PodFacts, term: PodTerm, placed: Placed
) -> tuple[Counts, pod_relations.Parts]:
    """Count the pods that a term selects on each row; return the counts and the domain numbers."""
    meant = _meant(pod, term)
    counts = nodes.count(meant).copy()
    for other, row in placed:
        if meant.matches(other):
            counts[row] += 1
    return counts, nodes.parts(term.topology_key)


def _repelling(nodes: NodeTable, pod: PodFacts, placed: Placed) -> Iterator[tuple[Pods, Counts]]:
    """Yield the anti-affinity terms of other pods that select this pod, and the rows of their
    owners.
    """
    found: dict[Pods, Counts] = {}
    for owner, rows in nodes.repelling.items():
        if owner.matches(pod):
            found[owner] = np.zeros(len(nodes.facts), dtype=np.int64)
            found[owner][list(rows)] = 1
    for other, row in placed:
        relations = other.shape.constraints.relations
        for term in relations.apart if relations is not None else ():
            owner = _meant(other, term)
            if not term.weight and owner.matches(pod):
                counts = found.setdefault(owner, np.zeros(len(nodes.facts), dtype=np.int64))
                counts[row] = 1
    yield from found.items()


def _meant(pod: PodFacts, term: PodTerm) -> Pods:
    return Pods(term, pod.key.partition("/")[0])
