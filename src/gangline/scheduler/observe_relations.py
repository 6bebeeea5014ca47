"""What pods want of other pods, from API objects to facts."""

from collections.abc import Iterable, Mapping

from gangline.api.affinity import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from gangline.api.meta import LabelSelector
from gangline.api.selectors import Requirement, Selector, SelectorError, from_object
from gangline.scheduler.model import PodTerm, Relations, SpreadTerm
from gangline.scheduler.wire import LeanPodSpec


def relations(spec: LeanPodSpec, labels: Mapping[str, str]) -> Relations | None:
    """Read what a pod with these labels wants of others; None: nothing.

    Namespaces chosen by their labels are not looked up: such a term means all namespaces.
    """
    affinity = spec.affinity
    found = Relations(
        near=_terms(affinity.pod_affinity if affinity else None, labels),
        apart=_terms(affinity.pod_anti_affinity if affinity else None, labels),
        spread=tuple(_spread(each, labels) for each in spec.topology_spread_constraints),
    )
    return found if found.near or found.apart or found.spread else None


def _terms(affinity: PodAffinity | None, labels: Mapping[str, str]) -> tuple[PodTerm, ...]:
    if affinity is None:
        return ()
    required = affinity.required_during_scheduling_ignored_during_execution
    preferred = affinity.preferred_during_scheduling_ignored_during_execution
    return (
        *(_term(term, labels, 0) for term in required),
        *(_term(liked.pod_affinity_term, labels, liked.weight) for liked in preferred),
    )


def _term(term: PodAffinityTerm, labels: Mapping[str, str], weight: int) -> PodTerm:
    selector = _selector(term.label_selector, labels, term.match_label_keys)
    differing = [
        Requirement(key, "notin", (labels[key],))
        for key in term.mismatch_label_keys
        if key in labels
    ]
    everywhere = term.namespace_selector is not None
    return PodTerm(
        selector=Selector((*selector.requirements, *differing), selector.nothing),
        topology_key=term.topology_key,
        namespaces=None if everywhere else tuple(sorted(term.namespaces)),
        weight=weight,
    )


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
