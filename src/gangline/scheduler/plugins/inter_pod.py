"""Inter-pod affinity, anti-affinity and topology spread: which rows the counts of matching pods
allow.

A topology domain is the set of nodes with one value of a label. Everything works on one count and
one domain number for each row.
"""

from collections.abc import Sequence
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
    """The pods that all of some terms select."""

    terms: tuple[PodTerm, ...]
    namespace: str
    """Namespace of the owner, for terms that name no namespaces."""
    lasting_only: bool = False
    """True if terminating pods are not selected."""

    @classmethod
    def of(cls, owner: PodInfo, *terms: PodTerm, lasting_only: bool = False) -> Self:
        return cls(terms, owner.key.partition("/")[0], lasting_only)

    @property
    def topology_key(self) -> str:
        return self.terms[0].topology_key

    def matches(self, pod: PodInfo) -> bool:
        if self.lasting_only and pod.is_terminating:
            return False
        namespace, labels = pod.key.partition("/")[0], dict(pod.labels)
        return all(
            (term.namespaces is None or namespace in (term.namespaces or (self.namespace,)))
            and term.selector.matches(labels)
            for term in self.terms
        )


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


def affinity_mask(
    counts: Counts, domains: Sequence[TopologyDomains], itself: bool, ended: Counts
) -> Mask:
    """Rows that share a domain of each term with a pod that all terms select.

    The first of pods that select themselves may use any domain. So kube-scheduler decides too. It
    does not become the first by the eviction of pods in other domains.

    Args:
        itself: whether the pod is selected too.
        ended: the selected pods that are not counted, as they are to be evicted.
    """
    is_first = itself and not any(counts[parts >= 0].any() for parts in domains)
    rows: Mask = np.ones(len(counts), dtype=bool)
    for parts in domains:
        if is_first:
            rows &= (parts >= 0) & (count_per_domain(ended, parts) == ended[parts >= 0].sum())
        else:
            rows &= count_per_domain(counts, parts) > 0
    return rows


def anti_affinity_mask(counts: Counts, parts: TopologyDomains) -> Mask:
    """Rows in a domain without matching pods, or in no domain."""
    rows: Mask = (parts < 0) | (count_per_domain(counts, parts) == 0)
    return rows


def spread_mask(
    term: SpreadTerm, counts: Counts, parts: TopologyDomains, eligible: Mask, itself: bool
) -> Mask:
    """Rows where one more pod keeps the skew within its limit.

    Args:
        eligible: the rows that count as domains, with their pods.
        itself: whether the pod is selected too.
    """
    per_domain = count_per_domain(np.where(eligible, counts, 0), parts)
    counted = eligible & (parts >= 0)
    if not counted.any():
        return parts >= 0
    least = int(per_domain[counted].min())
    if len(np.unique(parts[counted])) < term.min_domains:
        least = 0
    return (parts >= 0) & (per_domain + int(itself) - least <= term.max_skew)
