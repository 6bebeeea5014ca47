"""Namespace quotas: whether the pods that a gang still lacks may be made at all. Pure.

A quota may be for some pods only (its scopes). Those that a gang lacks are taken to be like all
those that it has; as long as it has none, what its group says of them counts.

The API server counts pods against a quota when they are made, so pods that exist are within it. A
gang of which only a part may be made waits with that part, and is told why; where its pods are
made only once it is let in, none is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gangline.api.resourcelist import CPU, MEMORY
from gangline.scheduler.model import GroupFacts, PodFacts, Request
from gangline.scheduler.scopes import Scope, Traits, includes

_COUNTS = frozenset({"pods", "count/pods"})
_REQUESTS = "requests."


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """A namespace's quota: the most that its pods may ask for together, and what they do."""

    key: str
    hard: Request
    used: Request = ()
    scopes: tuple[Scope, ...] = ()
    """It is for pods that are in all of these."""


def lacking_request(group: GroupFacts, members: Iterable[PodFacts]) -> Request:
    """Return what the pods of a gang's minimum that do not exist would ask for, with their number.

    By what its maker says its minimum asks for; else the pods that are missing are taken to be
    like one that exists.
    """
    there = _there(members)
    lacking = group.min_member - len(there)
    if lacking <= 0:
        return ()
    size = group.min_member
    amounts = {name: -(-amount * lacking // size) for name, amount in group.min_resources}
    if not amounts and there:
        amounts = {name: amount * lacking for name, amount in there[0].shape.request}
    return tuple(sorted({**amounts, "pods": lacking}.items()))


def traits_of_lacking(group: GroupFacts, members: Iterable[PodFacts]) -> frozenset[Traits]:
    """Return what quotas will see in the pods of a gang that do not exist, as far as is known."""
    if there := _there(members):
        return frozenset(pod.traits for pod in there)
    asks = any(amount for name, amount in group.min_resources if name in (CPU, MEMORY))
    # Without a class of its own a pod may get the one that is the default.
    return frozenset((Traits(None, False if asks else None, group.priority_class or None, None),))


def exceeded(quotas: Iterable[QuotaFacts], asked: Request, pods: Iterable[Traits] = ()) -> str:
    """Say which quota has no room for so much more; empty: all have.

    Args:
        quotas: the quotas of the namespace.
        asked: what pods that are yet to be made ask for together.
        pods: what is known of these pods; nothing: they are in every scope.
    """
    wanted, kinds = dict(asked), list(pods)
    for quota in sorted(quotas, key=lambda quota: quota.key):
        if not includes(quota.scopes, kinds):
            continue
        used = dict(quota.used)
        for name, hard in quota.hard:
            resource = "pods" if name in _COUNTS else name.removeprefix(_REQUESTS)
            amount = wanted.get(resource, 0)
            if amount and used.get(name, 0) + amount > hard:
                left = max(0, hard - used.get(name, 0))
                return (
                    f"quota {quota.key!r}{_scoped(quota)} has {_said(name, left)} left of "
                    f"{_said(name, hard)}, and {_said(name, amount)} more must be made"
                )
    return ""


def _there(members: Iterable[PodFacts]) -> list[PodFacts]:
    return [pod for pod in members if not pod.terminating and pod.phase != "Failed"]


def _scoped(quota: QuotaFacts) -> str:
    return f" (for pods in scope {', '.join(map(str, quota.scopes))})" if quota.scopes else ""


def _said(name: str, amount: int) -> str:
    shown = f"{amount / 1000:g}" if name.endswith("cpu") else str(amount)
    return f"{name} {shown}"
