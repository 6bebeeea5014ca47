"""Converts placement rules: inter-pod affinity, node groups of queues, quotas and images."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from gangline.api.affinity import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from gangline.api.meta import LabelSelector
from gangline.api.selectors import (
    EVERYTHING,
    Requirement,
    Selector,
    SelectorError,
    selector_from_object,
)
from gangline.scheduler.model import PodTerm, InterPodRules, SpreadTerm
from gangline.scheduler.wire import LeanPodSpec

Namespaces: TypeAlias = Mapping[str, Mapping[str, str]]
"""Labels of namespaces, by name."""
NO_NAMESPACES: Namespaces = {}
_NO_NAMESPACE = ("",)
"""Namespaces of a term whose namespace selector matches none."""


def inter_pod_rules(
    spec: LeanPodSpec, labels: Mapping[str, str], namespaces: Namespaces = NO_NAMESPACES
) -> InterPodRules | None:
    """Return the inter-pod rules of a pod with these labels; None: it has none.

    A namespace selector selects all namespaces while their labels are unknown.
    """
    affinity = spec.affinity
    found = InterPodRules(
        affinity=_terms(affinity.pod_affinity if affinity else None, labels, namespaces),
        anti_affinity=_terms(affinity.pod_anti_affinity if affinity else None, labels, namespaces),
        spread=tuple(_spread(each, labels) for each in spec.topology_spread_constraints),
    )
    return found if found.affinity or found.anti_affinity or found.spread else None


def has_namespace_selector(spec: LeanPodSpec) -> bool:
    """Return whether a term of the pod has a namespace selector."""
    return any(term.namespace_selector is not None for term in _all_terms(spec))


def crosses_namespaces(spec: LeanPodSpec) -> bool:
    """Return whether a term of the pod names or selects namespaces."""
    return any(term.namespaces or term.namespace_selector is not None for term in _all_terms(spec))


def _all_terms(spec: LeanPodSpec) -> Iterator[PodAffinityTerm]:
    """Yield all inter-pod terms, required and preferred."""
    affinity = spec.affinity
    for each in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if each is not None:
            yield from each.required_during_scheduling_ignored_during_execution
            for liked in each.preferred_during_scheduling_ignored_during_execution:
                yield liked.pod_affinity_term


def _terms(
    affinity: PodAffinity | None, labels: Mapping[str, str], namespaces: Namespaces
) -> tuple[PodTerm, ...]:
    if affinity is None:
        return ()
    required = affinity.required_during_scheduling_ignored_during_execution
    preferred = affinity.preferred_during_scheduling_ignored_during_execution
    return (
        *(_pod_term(term, labels, 0, namespaces) for term in required),
        *(
            _pod_term(liked.pod_affinity_term, labels, liked.weight, namespaces)
            for liked in preferred
        ),
    )


def _pod_term(
    term: PodAffinityTerm, labels: Mapping[str, str], weight: int, namespaces: Namespaces
) -> PodTerm:
    selector = _selector(term.label_selector, labels, term.match_label_keys)
    differing = [
        Requirement(key, "notin", (labels[key],))
        for key in term.mismatch_label_keys
        if key in labels
    ]
    return PodTerm(
        selector=Selector((*selector.requirements, *differing), selector.matches_nothing),
        topology_key=term.topology_key,
        namespaces=_namespaces(term, namespaces),
        weight=weight,
    )


def _namespaces(term: PodAffinityTerm, namespaces: Namespaces) -> tuple[str, ...] | None:
    """Return the namespaces of a term: named, selected, or both; None: all."""
    if term.namespace_selector is None:
        return tuple(sorted(term.namespaces))
    selector = _selector(term.namespace_selector, {}, ())
    if selector == EVERYTHING or not namespaces:
        return None
    chosen = {name for name, labels in namespaces.items() if selector.matches(labels)}
    return tuple(sorted(chosen | set(term.namespaces))) or _NO_NAMESPACE


def _spread(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> SpreadTerm:
    selector = _selector(constraint.label_selector, labels, constraint.match_label_keys)
    return SpreadTerm(
        pods=PodTerm(selector, constraint.topology_key),
        max_skew=constraint.max_skew or 1,
        min_domains=constraint.min_domains or 1,
        hard=constraint.when_unsatisfiable != "ScheduleAnyway",
    )


def _selector(
    written: LabelSelector | None, labels: Mapping[str, str], equal: Iterable[str]
) -> Selector:
    """Convert a selector; one that cannot be parsed selects no pods."""
    try:
        selector = selector_from_object(written)
    except SelectorError:
        return Selector(matches_nothing=True)
    alike = [Requirement(key, "in", (labels[key],)) for key in equal if key in labels]
    return Selector((*selector.requirements, *alike), selector.matches_nothing)
