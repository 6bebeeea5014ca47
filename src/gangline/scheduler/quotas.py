"""Namespace quotas: whether the pods that a gang still lacks may be made at all. Pure.

The API server counts pods against a quota when they are made, so pods that exist are within it. A
gang of which only a part may be made waits with that part, and is told why; where its pods are
made only once it is let in, none is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gangline.scheduler.model import GroupFacts, PodFacts, Request

_COUNTS = frozenset({"pods", "count/pods"})
_REQUESTS = "requests."


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """A namespace's quota: the most that its pods may ask for together, and what they do."""

    key: str
    hard: Request
    used: Request = ()


def lacking_request(group: GroupFacts, members: Iterable[PodFacts]) -> Request:
    """Return what the pods of a gang's minimum that do not exist would ask for, with their number.

    By what its maker says its minimum asks for; else the pods that are missing are taken to be
    like one that exists.
    """
    there = [pod for pod in members if not pod.terminating and pod.phase != "Failed"]
    lacking = group.min_member - len(there)
    if lacking <= 0:
        return ()
    size = group.min_member
    amounts = {name: -(-amount * lacking // size) for name, amount in group.min_resources}
    if not amounts and there:
        amounts = {name: amount * lacking for name, amount in there[0].shape.request}
    return tuple(sorted({**amounts, "pods": lacking}.items()))


def exceeded(quotas: Iterable[QuotaFacts], asked: Request) -> str:
    """Say which quota has no room for so much more; empty: all have."""
    wanted = dict(asked)
    for quota in sorted(quotas, key=lambda quota: quota.key):
        used = dict(quota.used)
        for name, hard in quota.hard:
            resource = "pods" if name in _COUNTS else name.removeprefix(_REQUESTS)
            amount = wanted.get(resource, 0)
            if amount and used.get(name, 0) + amount > hard:
                left = max(0, hard - used.get(name, 0))
                return (
                    f"quota {quota.key!r} has {_said(name, left)} left of {_said(name, hard)}, "
                    f"and {_said(name, amount)} more must be made"
                )
    return ""


def _said(name: str, amount: int) -> str:
    shown = f"{amount / 1000:g}" if name.endswith("cpu") else str(amount)
    return f"{name} {shown}"
