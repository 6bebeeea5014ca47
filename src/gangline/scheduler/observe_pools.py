"""Converts node groups of queues, and resource quotas."""

from contextlib import suppress

from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import CPU, MEMORY, amount
from gangline.api.scheduling import NodeGroups, QueueAffinity
from gangline.api.selectors import NOTHING, Requirement, Selector
from gangline.scheduler.model import Expression, Fence, NodeTerm
from gangline.scheduler.observe_relations import names_namespaces
from gangline.scheduler.quotas import QuotaFacts
from gangline.scheduler.scopes import PRIORITY_CLASS, Scope, Traits, traits_of
from gangline.scheduler.wire import (
    NODE_GROUP_KEY,
    LeanPodSpec,
    LeanResources,
    QuotaScope,
    ResourceQuota,
)

OUTSIDE = "node(s) didn't match the node groups of the queue"
LIKED = 50
"""Weight, of 100, of the node groups that a queue prefers or prefers to avoid."""


def node_group_fences(affinity: QueueAffinity | None) -> tuple[Fence, ...]:
    """Return the node terms of a queue: node groups to use, and node groups to avoid."""
    if affinity is None:
        return ()
    found = []
    for operator, groups in _both(affinity):
        if required := groups.required_during_scheduling_ignored_during_execution:
            found.append(Fence((_term(operator, required),), OUTSIDE))
    return tuple(found)


def node_group_wishes(affinity: QueueAffinity | None) -> tuple[tuple[int, NodeTerm], ...]:
    """Return the preferred node terms of a queue, with weights."""
    if affinity is None:
        return ()
    return tuple(
        (LIKED, _term(operator, liked))
        for operator, groups in _both(affinity)
        if (liked := groups.preferred_during_scheduling_ignored_during_execution)
    )


def quota_facts(quota: ResourceQuota) -> QuotaFacts:
    hard = quota.status.hard or quota.spec.hard
    key = f"{quota.metadata.namespace}/{quota.metadata.name}"
    chosen = quota.spec.scope_selector
    scopes = [QuotaScope(name, "Exists") for name in quota.spec.scopes]
    scopes += chosen.match_expressions if chosen else []
    return QuotaFacts(key, _amounts(hard), _amounts(quota.status.used), tuple(map(_scope, scopes)))


def pod_traits(spec: LeanPodSpec) -> Traits:
    """Return the quota attributes of a pod.

    Raises:
        QuantityError: a resource quantity cannot be parsed.
    """
    containers = [each.resources for each in (*spec.containers, *spec.init_containers)]
    asked = [*containers, spec.resources] if spec.resources is not None else containers
    return traits_of(
        spec.active_deadline_seconds is not None,
        not any(map(_asks_for_something, asked)),
        spec.priority_class_name,
        names_namespaces(spec),
    )


def _both(affinity: QueueAffinity) -> list[tuple[str, NodeGroups]]:
    both = (("In", affinity.node_group_affinity), ("NotIn", affinity.node_group_anti_affinity))
    return [(operator, groups) for operator, groups in both if groups is not None]


def _term(operator: str, groups: list[str]) -> NodeTerm:
    return NodeTerm((Expression(NODE_GROUP_KEY, operator, tuple(groups)),))


_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def _scope(written: QuotaScope) -> Scope:
    """Convert a scope. One that cannot be parsed selects no pods: no API server admits it."""
    if written.scope_name != PRIORITY_CLASS:
        return Scope(written.scope_name)
    operator = _OPERATORS.get(written.operator)
    if operator is None:
        return Scope(PRIORITY_CLASS, NOTHING)
    chosen = Requirement(PRIORITY_CLASS, operator, tuple(written.values))
    return Scope(PRIORITY_CLASS, Selector((chosen,)))


def _asks_for_something(resources: LeanResources) -> bool:
    """Return whether CPU or memory is requested: then the pod is not best effort."""
    both = (resources.requests, resources.limits)
    return any(
        name in written and amount(name, written[name]) > 0
        for written in both
        for name in (CPU, MEMORY)
    )


def _amounts(written: dict[str, int | float | str]) -> tuple[tuple[str, int], ...]:
    """Return amounts by the quota's own names, in the units of requests (CPU in thousandths)."""
    found = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            found[name] = amount(name.removeprefix("requests."), quantity)
    return tuple(sorted(found.items()))
