"""What pods want of other pods, from API objects to facts."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from gangline.api.affinity import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from gangline.api.meta import LabelSelector
from gangline.api.selectors import EVERYTHING, Requirement, Selector, SelectorError, from_object
from gangline.scheduler.model import PodTerm, Relations, SpreadTerm
from gangline.scheduler.wire import LeanPodSpec

Namespaces: TypeAlias = Mapping[str, Mapping[str, str]]
"""The labels of namespaces, by name."""
NO_NAMESPACES: Namespaces = {}
_NOWHERE = ("",)
"""The namespaces of a term that chooses some by labels that none has."""


def relations(
    spec: LeanPodSpec, labels: Mapping[str, str], namespaces: Namespaces = NO_NAMESPACES
) -> Relations | None:
    """Read what a pod with these labels wants of others; None: nothing.

    Where namespaces are chosen by their labels and these are not known, all are meant.
    """
    affinity = spec.affinity
    found = Relations(
        near=_terms(affinity.pod_affinity if affinity else None, labels, namespaces),
        apart=_terms(affinity.pod_anti_affinity if affinity else None, labels, namespaces),
        spread=tuple(_spread(each, labels) for each in spec.topology_spread_constraints),
    )
    return found if found.near or found.apart or found.spread else None


def chooses_namespaces(spec: LeanPodSpec) -> bool:
    """Say whether some of what a pod wants depends on the labels of namespaces."""
    return any(term.namespace_selector is not None for term in _written(spec))


def names_namespaces(spec: LeanPodSpec) -> bool:
    """Say whether some of what a pod wants is said of namespaces, by name or by their labels."""
    return any(term.namespaces or term.namespace_selector is not None for term in _written(spec))


def _written(spec: LeanPodSpec) -> Iterator[PodAffinityTerm]:
    """All that a pod wants of others, required or liked."""
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
        *(_term(term, labels, 0, namespaces) for term in required),
        *(_term(liked.pod_affinity_term, labels, liked.weight, namespaces) for liked in preferred),
    )


def _term(
    term: PodAffinityTerm, labels: Mapping[str, str], weight: int, namespaces: Namespaces
) -> PodTerm:
    selector = _selector(term.label_selector, labels, term.match_label_keys)
    differing = [
        Requirement(key, "notin", (labels[key],))
        for key in term.mismatch_label_keys
        if key in labels
    ]
    return PodTerm(
        selector=Selector((*selector.requirements, *differing), selector.nothing),
        topology_key=term.topology_key,
        namespaces=_namespaces(term, namespaces),
        weight=weight,
    )


def _namespaces(term: PodAffinityTerm, namespaces: Namespaces) -> tuple[str, ...] | None:
    """The namespaces that a term means: listed, chosen by labels, or both; None: all."""
    if term.namespace_selector is None:
        return tuple(sorted(term.namespaces))
    selector = _selector(term.namespace_selector, {}, ())
    if selector == EVERYTHING or not namespaces:
        return None
    chosen = {name for name, labels in namespaces.items() if selector.matches(labels)}
    return tuple(sorted(chosen | set(term.namespaces))) or _NOWHERE


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
    """Read a selector; one that cannot be read means no pods."""
    try:
        selector = from_object(written)
    except SelectorError:
        return Selector(nothing=True)
    alike = [Requirement(key, "in", (labels[key],)) for key in equal if key in labels]
    return Selector((*selector.requirements, *alike), selector.nothing)
