"""Pools and quotas from API objects to facts: node groups of queues, and namespaces' quotas."""

from contextlib import suppress

from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import amount
from gangline.api.scheduling import NodeGroups, QueueAffinity
from gangline.scheduler.model import Expression, Fence, NodeTerm
from gangline.scheduler.quotas import QuotaFacts
from gangline.scheduler.wire import NODE_GROUP_KEY, ResourceQuota

OUTSIDE = "node(s) didn't match the node groups of the queue"
LIKED = 50
"""How much the node groups that a queue prefers, or would rather avoid, count: of 100."""


def node_group_fences(affinity: QueueAffinity | None) -> tuple[Fence, ...]:
    """Return the nodes that a queue's jobs are kept to: groups to use, and groups to avoid."""
    if affinity is None:
        return ()
    found = []
    for operator, groups in _both(affinity):
        if required := groups.required_during_scheduling_ignored_during_execution:
            found.append(Fence((_term(operator, required),), OUTSIDE))
    return tuple(found)


def node_group_wishes(affinity: QueueAffinity | None) -> tuple[tuple[int, NodeTerm], ...]:
    """Return the nodes that a queue's jobs would like, with weights."""
    if affinity is None:
        return ()
    return tuple(
        (LIKED, _term(operator, liked))
        for operator, groups in _both(affinity)
        if (liked := groups.preferred_during_scheduling_ignored_during_execution)
    )


def quota_facts(quota: ResourceQuota) -> QuotaFacts | None:
    """Read a quota; None: it is for certain pods only, and not looked at."""
    if quota.spec.scopes or quota.spec.scope_selector is not None:
        return None
    hard = quota.status.hard or quota.spec.hard
    key = f"{quota.metadata.namespace}/{quota.metadata.name}"
    return QuotaFacts(key, _amounts(hard), _amounts(quota.status.used))


def _both(affinity: QueueAffinity) -> list[tuple[str, NodeGroups]]:
    both = (("In", affinity.node_group_affinity), ("NotIn", affinity.node_group_anti_affinity))
    return [(operator, groups) for operator, groups in both if groups is not None]


def _term(operator: str, groups: list[str]) -> NodeTerm:
    return NodeTerm((Expression(NODE_GROUP_KEY, operator, tuple(groups)),))


def _amounts(written: dict[str, int | float | str]) -> tuple[tuple[str, int], ...]:
    """Amounts by the quota's own names, in the units of requests (CPU in thousandths)."""
    found = {}
    for name, quantity in written.items():
        with suppress(QuantityError):
            found[name] = amount(name.removeprefix("requests."), quantity)
    return tuple(sorted(found.items()))
