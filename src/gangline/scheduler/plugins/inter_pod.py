"""Inter-pod affinity, anti-affinity and topology spread: which rows the counts of matching pods
allow.

A topology domain is the set of nodes with one value of a label. Everything works on one count and
one domain number for each row.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.types import PodInfo, PodTerm, SpreadTerm

Counts = NDArray[np.int64]
TopologyDomains = NDArray[np.intp]
"""Topology domain number of each row; -1: its node lacks the label."""
Mask = NDArray[np.bool_]

AFFINITY_MISMATCH = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_MISMATCH = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_VIOLATED = "node(s) didn't match pod topology spread constraints"


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods that a term selects."""

    term: PodTerm
    namespace: str
    """Namespace of the owner, for terms that name no namespaces."""

    @classmethod
    def of(cls, owner: PodInfo, term: PodTerm) -> Self:
        return cls(term, owner.key.partition("/")[0])

    def matches(self, pod: PodInfo) -> bool:
        namespace = pod.key.partition("/")[0]
        namespaces = self.term.namespaces
        if namespaces is not None and namespace not in (namespaces or (self.namespace,)):
            return False
        return self.term.selector.matches(dict(pod.labels))


def required_anti_affinity(pod: PodInfo) -> list[PodSelection]:
    """Return the pods that must not share a domain with this one, by its own terms."""
    rules = pod.shape.constraints.inter_pod
    terms = rules.anti_affinity if rules is not None else ()
    return [PodSelection.of(pod, term) for term in terms if not term.weight]


def count_per_domain(counts: Counts, parts: TopologyDomains) -> Counts:
    """Return for each row the total of its domain; 0 without a domain."""
    if not len(parts):
        return counts
    size = int(parts.max(initial=-1)) + 1
    totals = np.bincount(parts[parts >= 0], weights=counts[parts >= 0], minlength=max(1, size))
    return np.where(parts >= 0, totals[parts], 0).astype(np.int64)


def affinity_mask(counts: Counts, parts: TopologyDomains, itself: bool) -> Mask:
    """Rows in a domain with a matching pod. The first of pods that select themselves may use any
    domain.
    """
    if itself and not counts[parts >= 0].any():
        return parts >= 0
    return (parts >= 0) & (count_per_domain(counts, parts) > 0)


def anti_affinity_mask(counts: Counts, parts: TopologyDomains) -> Mask:
    """Rows in a domain without matching pods, or in no domain."""
    rows: Mask = (parts < 0) | (count_per_domain(counts, parts) == 0)
    return rows


def spread_mask(
    term: SpreadTerm, counts: Counts, parts: TopologyDomains, eligible: Mask, itself: bool
) -> Mask:
    """Rows where one more pod keeps the skew within its limit."""
    per_domain = count_per_domain(np.where(eligible, counts, 0), parts)
    counted = eligible & (parts >= 0)
    if not counted.any():
        return counted
    least = int(per_domain[counted].min())
    if len(np.unique(parts[counted])) < term.min_domains:
        least = 0
    return (parts >= 0) & (per_domain + int(itself) - least <= term.max_skew)
