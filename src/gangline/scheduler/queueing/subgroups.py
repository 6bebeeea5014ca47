"""Subgroups of a gang (``subGroupPolicy``): which pods form one, and how many are complete.

A subgroup is complete with ``size`` pods; fewer are never placed. The gang may start when
``min_subgroups`` subgroups of each rule are complete. A pod belongs to the first rule that selects
it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gangline.scheduler.types.types import NetworkTopologyRule, PodInfo, PodKey, SubgroupRule

SubgroupKey = tuple[str, tuple[str, ...]]
"""The name of the rule, and the label values that distinguish its subgroups."""


@dataclass(frozen=True, slots=True)
class Subgroup:
    """A subgroup: its pending pods, and its members that count already."""

    key: SubgroupKey
    size: int
    pending: tuple[PodInfo, ...] = ()
    running: tuple[PodInfo, ...] = ()
    """Members that hold resources."""
    settled: int = 0
    """Number of members that count already: they run or have succeeded."""
    network: NetworkTopologyRule | None = None

    @property
    def missing(self) -> int:
        """Number of pods that are missing for a complete subgroup."""
        return max(0, self.size - self.settled)


def split_into_subgroups(
    rules: Sequence[SubgroupRule], settled: Iterable[PodInfo], waiting: Iterable[PodInfo]
) -> tuple[Subgroup, ...]:
    """Return the subgroups of a gang: those with running members first, then by name."""
    had: dict[SubgroupKey, list[PodInfo]] = defaultdict(list)
    wait: dict[SubgroupKey, list[PodInfo]] = defaultdict(list)
    for pods, found in ((settled, had), (waiting, wait)):
        for pod in pods:
            if (key := subgroup_key(rules, pod)) is not None:
                found[key].append(pod)
    by_name = {rule.name: rule for rule in rules}
    parts = [
        Subgroup(
            key=key,
            size=by_name[key[0]].size,
            pending=tuple(wait[key]),
            running=tuple(pod for pod in had[key] if pod.holds_resources),
            settled=len(had[key]),
            network=by_name[key[0]].network,
        )
        for key in sorted(had.keys() | wait.keys())
    ]
    return tuple(sorted(parts, key=lambda part: (not part.settled, part.key)))


def subgroup_key(rules: Sequence[SubgroupRule], pod: PodInfo) -> SubgroupKey | None:
    """Return the key of a pod's subgroup; None: it belongs to no subgroup."""
    labels = dict(pod.labels)
    for rule in rules:
        if rule.selector.matches(labels):
            return rule.name, tuple(labels.get(key, "") for key in rule.keys)
    return None


def has_enough_complete(
    rules: Sequence[SubgroupRule], parts: Iterable[Subgroup], placed: Iterable[PodInfo]
) -> bool:
    """Return whether enough subgroups are complete once ``placed`` have their nodes."""
    count = Counter(subgroup_key(rules, pod) for pod in placed)
    complete = Counter(part.key[0] for part in parts if count[part.key] >= part.missing)
    return all(complete[rule.name] >= rule.min_subgroups for rule in rules)


def order_by_subgroup(parts: Iterable[Subgroup], waiting: Sequence[PodInfo]) -> tuple[PodInfo, ...]:
    """Return the pending pods, one subgroup after the other; pods of no subgroup come last.

    Subgroups that existing pods cannot complete come after those that they can.
    """
    listed = list(parts)
    listed.sort(key=lambda part: len(part.pending) < part.missing)
    ordered = [pod for part in listed for pod in part.pending]
    seen: set[PodKey] = {pod.key for pod in ordered}
    return (*ordered, *(pod for pod in waiting if pod.key not in seen))


def missing_subgroups(
    rules: Sequence[SubgroupRule], parts: Iterable[Subgroup]
) -> tuple[SubgroupRule, int] | None:
    """Return the first rule that existing pods cannot satisfy, and how many subgroups they
    complete.
    """
    listed = list(parts)
    for rule in rules:
        able = sum(
            part.key[0] == rule.name and len(part.pending) >= part.missing for part in listed
        )
        if able < rule.min_subgroups:
            return rule, able
    return None
