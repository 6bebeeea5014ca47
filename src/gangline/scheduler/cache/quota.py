"""Resource quotas: whether the missing pods of a gang would be admitted.

A quota may count some pods only (its scopes). Missing pods are assumed to equal the existing
members; a gang without members is described by its group.

The API server charges pods to a quota when they are created, so existing pods are within it. A gang
of which the quota admits only a part stays pending with that part, and its reason names the quota.
Controllers that create pods after admission then create none of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gangline.api.resource_list import CPU, MEMORY
from gangline.scheduler.types.quota_scopes import QuotaAttributes, QuotaScopeRule, all_in_scopes
from gangline.scheduler.types.types import PodGroupInfo, PodInfo, Request

_COUNTS = frozenset({"pods", "count/pods"})
_REQUESTS = "requests."


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """A namespace's quota: its limits, its usage, and its scopes."""

    key: str
    hard: Request
    used: Request = ()
    scopes: tuple[QuotaScopeRule, ...] = ()
    """The quota counts pods that are in all of these scopes."""


def missing_pods_request(group: PodGroupInfo, members: Iterable[PodInfo]) -> Request:
    """Return the total request of a gang's missing pods, with their number: those of its minimum,
    and those that join it later.

    It follows from ``minResources`` of the group; else missing pods are assumed to equal an
    existing one.
    """
    there = _existing(members)
    lacking = group.size - len(there)
    if lacking <= 0:
        return ()
    size = group.size
    amounts = {name: -(-amount * lacking // size) for name, amount in group.min_resources}
    if not amounts and there:
        amounts = {name: amount * lacking for name, amount in there[0].shape.request}
    return tuple(sorted({**amounts, "pods": lacking}.items()))


def missing_pods_attributes(
    group: PodGroupInfo, members: Iterable[PodInfo]
) -> frozenset[QuotaAttributes]:
    """Return the known quota attributes of a gang's missing pods."""
    if there := _existing(members):
        return frozenset(pod.quota_attributes for pod in there)
    asks = any(amount for name, amount in group.min_resources if name in (CPU, MEMORY))
    # Without a class the pod may get the default one: unknown.
    return frozenset(
        (QuotaAttributes(None, False if asks else None, group.priority_class or None, None),)
    )


def exceeded_quota_message(
    quotas: Iterable[QuotaInfo], asked: Request, pods: Iterable[QuotaAttributes] = ()
) -> str:
    """Return which quota would be exceeded; empty: none.

    Args:
        quotas: the quotas of the namespace.
        asked: the total request of pods to be created.
        pods: known attributes of these pods; empty: they are in every scope.
    """
    requested, kinds = dict(asked), list(pods)
    for quota in sorted(quotas, key=lambda quota: quota.key):
        if not all_in_scopes(quota.scopes, kinds):
            continue
        used = dict(quota.used)
        for name, hard in quota.hard:
            resource = "pods" if name in _COUNTS else name.removeprefix(_REQUESTS)
            amount = requested.get(resource, 0)
            if amount and used.get(name, 0) + amount > hard:
                left = _amount_text(name, max(0, hard - used.get(name, 0)))
                return (
                    f"quota {quota.key!r}{_scope_text(quota)} has {left} left of "
                    f"{_amount_text(name, hard)}, and {_amount_text(name, amount)} more is needed"
                )
    return ""


def _existing(members: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in members if not pod.is_terminating and pod.phase != "Failed"]


def _scope_text(quota: QuotaInfo) -> str:
    return f" (for pods in scope {', '.join(map(str, quota.scopes))})" if quota.scopes else ""


def _amount_text(name: str, amount: int) -> str:
    shown = f"{amount / 1000:g}" if name.endswith("cpu") else str(amount)
    return f"{name} {shown}"
