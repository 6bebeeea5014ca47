"""Converts placement rules: inter-pod affinity, node groups of queues, quotas and images.

Nodes list many images, mostly the same ones: equal entries are interned across nodes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TypeAlias

from msgspec.structs import replace

from gangline.api.cluster.quota import ResourceQuota, ScopedSelectorRequirement
from gangline.api.core.affinity import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from gangline.api.core.node import ContainerImage, Node
from gangline.api.meta.objects import LabelSelector
from gangline.api.meta.selectors import (
    EVERYTHING,
    NOTHING,
    Requirement,
    Selector,
    SelectorError,
    selector_from_object,
)
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, MEMORY, parse_resource
from gangline.api.volcano.scheduling import NodeGroups, QueueAffinity
from gangline.scheduler.plugins.image_locality import PodImages, normalize_image_name
from gangline.scheduler.types import (
    PRIORITY_CLASS,
    InterPodRules,
    LabelExpression,
    NodeTerm,
    PodTerm,
    QuotaAttributes,
    QuotaInfo,
    QuotaScopeRule,
    RequiredNodeTerms,
    SpreadTerm,
    quota_attributes_of,
)
from gangline.scheduler.wire import (
    NODE_GROUP_KEY,
    ImagedPodSpec,
    LeanPodSpec,
    LeanResources,
)

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
    rules = InterPodRules(
        affinity=_terms(affinity.pod_affinity if affinity else None, labels, namespaces),
        anti_affinity=_terms(affinity.pod_anti_affinity if affinity else None, labels, namespaces),
        spread=tuple(
            _spread(constraint, labels) for constraint in spec.topology_spread_constraints
        ),
    )
    return rules if rules.affinity or rules.anti_affinity or rules.spread else None


def has_namespace_selector(spec: LeanPodSpec) -> bool:
    return spec.affinity is not None and any(
        term.namespace_selector is not None for term in _all_terms(spec)
    )


def crosses_namespaces(spec: LeanPodSpec) -> bool:
    """Return whether a term of the pod names or selects namespaces."""
    return any(term.namespaces or term.namespace_selector is not None for term in _all_terms(spec))


def _all_terms(spec: LeanPodSpec) -> Iterator[PodAffinityTerm]:
    """Yield all inter-pod terms, required and preferred."""
    affinity = spec.affinity
    for terms in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        if terms is not None:
            yield from terms.required_during_scheduling_ignored_during_execution
            for preferred in terms.preferred_during_scheduling_ignored_during_execution:
                yield preferred.pod_affinity_term


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
            _pod_term(preference.pod_affinity_term, labels, preference.weight, namespaces)
            for preference in preferred
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
        honors_affinity=constraint.node_affinity_policy != "Ignore",
        honors_taints=constraint.node_taints_policy == "Honor",
    )


def _selector(
    written: LabelSelector | None, labels: Mapping[str, str], equal: Iterable[str]
) -> Selector:
    selector = read_selector(written)
    equal_values = [Requirement(key, "in", (labels[key],)) for key in equal if key in labels]
    return Selector((*selector.requirements, *equal_values), selector.matches_nothing)


def read_selector(written: LabelSelector | None) -> Selector:
    """Convert a selector; one that cannot be parsed selects nothing."""
    try:
        return selector_from_object(written)
    except SelectorError:
        return NOTHING


NODE_GROUP_MISMATCH = "node(s) didn't match the node groups of the queue"
PREFERRED_NODE_GROUP_WEIGHT = 50
"""Weight, of 100, of the node groups that a queue prefers or prefers to avoid."""


def node_terms(selector: NodeSelector) -> tuple[NodeTerm, ...]:
    return tuple(map(node_term, selector.node_selector_terms))


def node_term(term: NodeSelectorTerm) -> NodeTerm:
    return NodeTerm(
        labels=tuple(map(_expression, term.match_expressions)),
        fields=tuple(map(_expression, term.match_fields)),
    )


def _expression(requirement: NodeSelectorRequirement) -> LabelExpression:
    return LabelExpression(requirement.key, requirement.operator, tuple(requirement.values))


def node_group_terms(affinity: QueueAffinity | None) -> tuple[RequiredNodeTerms, ...]:
    """Return the node terms of a queue: node groups to use, and node groups to avoid."""
    if affinity is None:
        return ()
    terms = []
    for operator, groups in _affinity_pairs(affinity):
        if required := groups.required_during_scheduling_ignored_during_execution:
            terms.append(
                RequiredNodeTerms((_node_group_term(operator, required),), NODE_GROUP_MISMATCH)
            )
    return tuple(terms)


def preferred_node_group_terms(affinity: QueueAffinity | None) -> tuple[tuple[int, NodeTerm], ...]:
    if affinity is None:
        return ()
    return tuple(
        (PREFERRED_NODE_GROUP_WEIGHT, _node_group_term(operator, preferred))
        for operator, groups in _affinity_pairs(affinity)
        if (preferred := groups.preferred_during_scheduling_ignored_during_execution)
    )


def quota_info(quota: ResourceQuota) -> QuotaInfo:
    hard = quota.status.hard or quota.spec.hard
    key = f"{quota.metadata.namespace}/{quota.metadata.name}"
    chosen = quota.spec.scope_selector
    scopes = [ScopedSelectorRequirement(name, "Exists") for name in quota.spec.scopes]
    scopes += chosen.match_expressions if chosen else []
    return QuotaInfo(key, _amounts(hard), _amounts(quota.status.used), tuple(map(_scope, scopes)))


def pod_quota_attributes(spec: LeanPodSpec) -> QuotaAttributes:
    """Return the quota attributes of a pod.

    Raises:
        QuantityError: a resource quantity cannot be parsed.
    """
    containers = [container.resources for container in (*spec.containers, *spec.init_containers)]
    asked = [*containers, spec.resources] if spec.resources is not None else containers
    return quota_attributes_of(
        spec.active_deadline_seconds is not None,
        not any(map(_asks_for_something, asked)),
        spec.priority_class_name,
        crosses_namespaces(spec),
    )


def _affinity_pairs(affinity: QueueAffinity) -> list[tuple[str, NodeGroups]]:
    both = (("In", affinity.node_group_affinity), ("NotIn", affinity.node_group_anti_affinity))
    return [(operator, groups) for operator, groups in both if groups is not None]


def _node_group_term(operator: str, groups: list[str]) -> NodeTerm:
    return NodeTerm((LabelExpression(NODE_GROUP_KEY, operator, tuple(groups)),))


_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def _scope(written: ScopedSelectorRequirement) -> QuotaScopeRule:
    """Convert a scope. One that cannot be parsed selects no pods: no API server admits it."""
    if written.scope_name != PRIORITY_CLASS:
        return QuotaScopeRule(written.scope_name)
    operator = _OPERATORS.get(written.operator)
    if operator is None:
        return QuotaScopeRule(PRIORITY_CLASS, NOTHING)
    chosen = Requirement(PRIORITY_CLASS, operator, tuple(written.values))
    return QuotaScopeRule(PRIORITY_CLASS, Selector((chosen,)))


def _asks_for_something(resources: LeanResources) -> bool:
    """Return whether CPU or memory is requested: then the pod is not best effort."""
    both = (resources.requests, resources.limits)
    return any(
        name in written and parse_resource(name, written[name]) > 0
        for written in both
        for name in (CPU, MEMORY)
    )


def _amounts(written: dict[str, int | float | str]) -> tuple[tuple[str, int], ...]:
    """Return amounts by the quota's own names, in the units of requests (CPU in thousandths)."""
    amounts = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            amounts[name] = parse_resource(name.removeprefix("requests."), quantity)
    return tuple(sorted(amounts.items()))


MAX_IMAGE_BYTES = 2**50
"""Larger sizes are clamped."""
_Listed = tuple[tuple[str, int], ...]
"""Image names with their bytes."""


def slim_node(node: Node) -> Node:
    """Drop image lists and what heartbeats change: they are long, and there are many nodes."""
    status = replace(node.status, images=[], volumes_in_use=[], volumes_attached=[])
    return replace(node, status=status)


def slim_node_with_images(node: Node) -> Node:
    """Drop what heartbeats change, and intern the images."""
    images = [_interned_image(tuple(image.names), image.size_bytes) for image in node.status.images]
    slim = slim_node(node)
    return replace(slim, status=replace(slim.status, images=images))


def node_images(node: Node) -> _Listed:
    sizes: dict[str, tuple[str, int]] = {}
    for image in node.status.images:
        for entry in _entries(tuple(image.names), image.size_bytes):
            sizes[entry[0]] = entry
    return tuple(sizes[name] for name in sorted(sizes))


def pod_images(spec: LeanPodSpec) -> PodImages:
    """Return the images of a pod's containers; empty if they were not read."""
    if not isinstance(spec, ImagedPodSpec):
        return ()
    containers = (*spec.init_containers, *spec.containers)
    return tuple(sorted(normalize_image_name(container.image) for container in containers))


@lru_cache(maxsize=16_384)
def _interned_image(names: tuple[str, ...], size: int) -> ContainerImage:
    return ContainerImage(list(names), size)


@lru_cache(maxsize=16_384)
def _entries(names: tuple[str, ...], size: int) -> _Listed:
    """Each name of an image with its bytes; absurd ones are cut."""
    return tuple((normalize_image_name(name), min(MAX_IMAGE_BYTES, max(0, size))) for name in names)
