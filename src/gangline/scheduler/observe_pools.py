"""Converts node groups of queues, and resource quotas."""

from contextlib import suppress

from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import CPU, MEMORY, parse_resource
from gangline.api.scheduling import NodeGroups, QueueAffinity
from gangline.api.selectors import NOTHING, Requirement, Selector
from gangline.scheduler.model import LabelExpression, RequiredNodeTerms, NodeTerm
from gangline.scheduler.observe_relations import crosses_namespaces
from gangline.scheduler.quotas import QuotaInfo
from gangline.scheduler.scopes import (
    PRIORITY_CLASS,
    QuotaScopeRule,
    QuotaAttributes,
    quota_attributes_of,
)
from gangline.scheduler.wire import (
    NODE_GROUP_KEY,
    LeanPodSpec,
    LeanResources,
    QuotaScope,
    ResourceQuota,
)

NODE_GROUP_MISMATCH = "node(s) didn't match the node groups of the queue"
PREFERRED_NODE_GROUP_WEIGHT = 50
"""Weight, of 100, of the node groups that a queue prefers or prefers to avoid."""


def node_group_terms(affinity: QueueAffinity | None) -> tuple[RequiredNodeTerms, ...]:
    """Return the node terms of a queue: node groups to use, and node groups to avoid."""
    if affinity is None:
        return ()
    found = []
    for operator, groups in _affinity_pairs(affinity):
        if required := groups.required_during_scheduling_ignored_during_execution:
            found.append(
                RequiredNodeTerms((_node_group_term(operator, required),), NODE_GROUP_MISMATCH)
            )
    return tuple(found)


def preferred_node_group_terms(affinity: QueueAffinity | None) -> tuple[tuple[int, NodeTerm], ...]:
    """Return the preferred node terms of a queue, with weights."""
    if affinity is None:
        return ()
    return tuple(
        (PREFERRED_NODE_GROUP_WEIGHT, _node_group_term(operator, liked))
        for operator, groups in _affinity_pairs(affinity)
        if (liked := groups.preferred_during_scheduling_ignored_during_execution)
    )


def quota_info(quota: ResourceQuota) -> QuotaInfo:
    hard = quota.status.hard or quota.spec.hard
    key = f"{quota.metadata.namespace}/{quota.metadata.name}"
    chosen = quota.spec.scope_selector
    scopes = [QuotaScope(name, "Exists") for name in quota.spec.scopes]
    scopes += chosen.match_expressions if chosen else []
    return QuotaInfo(key, _amounts(hard), _amounts(quota.status.used), tuple(map(_scope, scopes)))


def pod_quota_attributes(spec: LeanPodSpec) -> QuotaAttributes:
    """Return the quota attributes of a pod.

    Raises:
        QuantityError: a resource quantity cannot be parsed.
    """
    containers = [each.resources for each in (*spec.containers, *spec.init_containers)]
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


def _scope(written: QuotaScope) -> QuotaScopeRule:
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
    found = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            found[name] = parse_resource(name.removeprefix("requests."), quantity)
    return tuple(sorted(found.items()))
