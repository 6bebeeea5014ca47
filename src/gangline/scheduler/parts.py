"""Small gangs within a gang (``subGroupPolicy``): which pods are one, and how many are whole.

A small gang is whole with ``size`` of its pods; fewer are never placed. The gang may start when
``minimum`` small gangs of each rule are whole. A pod belongs to the first rule that means it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gangline.scheduler.model import NetworkRule, PartRule, PodFacts, PodKey

PartKey = tuple[str, tuple[str, ...]]
"""The name of the rule, and the values of the labels that tell its small gangs apart."""


@dataclass(frozen=True, slots=True)
class Part:
    """A small gang: its pods that wait, and what it has already."""

    key: PartKey
    size: int
    waiting: tuple[PodFacts, ...] = ()
    running: tuple[PodFacts, ...] = ()
    """Those that hold room already."""
    settled: int = 0
    """Those that count already: they run, or have succeeded."""
    network: NetworkRule | None = None

    @property
    def missing(self) -> int:
        """How many more of its pods make it whole."""
        return max(0, self.size - self.settled)

    @property
    def name(self) -> str:
        """What to call it to people."""
        rule, values = self.key
        return "/".join((rule, *values))


def divide(
    rules: Sequence[PartRule], settled: Iterable[PodFacts], waiting: Iterable[PodFacts]
) -> tuple[Part, ...]:
    """Return the small gangs of a gang, those first that have begun, then by name."""
    had: dict[PartKey, list[PodFacts]] = defaultdict(list)
    wait: dict[PartKey, list[PodFacts]] = defaultdict(list)
    for pods, found in ((settled, had), (waiting, wait)):
        for pod in pods:
            if (key := part_of(rules, pod)) is not None:
                found[key].append(pod)
    by_name = {rule.name: rule for rule in rules}
    parts = [
        Part(
            key=key,
            size=by_name[key[0]].size,
            waiting=tuple(wait[key]),
            running=tuple(pod for pod in had[key] if pod.holds_room),
            settled=len(had[key]),
            network=by_name[key[0]].network,
        )
        for key in sorted(had.keys() | wait.keys())
    ]
    return tuple(sorted(parts, key=lambda part: (not part.settled, part.key)))


def part_of(rules: Sequence[PartRule], pod: PodFacts) -> PartKey | None:
    """Return the small gang that a pod belongs to; None: to none."""
    labels = dict(pod.labels)
    for rule in rules:
        if rule.selector.matches(labels):
            return rule.name, tuple(labels.get(key, "") for key in rule.keys)
    return None


def enough_whole(
    rules: Sequence[PartRule], parts: Iterable[Part], placed: Iterable[PodFacts]
) -> bool:
    """Say whether enough small gangs are whole once ``placed`` have their nodes."""
    count = Counter(part_of(rules, pod) for pod in placed)
    whole = Counter(part.key[0] for part in parts if count[part.key] >= part.missing)
    return all(whole[rule.name] >= rule.minimum for rule in rules)


def in_order(parts: Iterable[Part], waiting: Sequence[PodFacts]) -> tuple[PodFacts, ...]:
    """Return the pods that wait, one small gang after the other, those of none last.

    Small gangs that cannot become whole with the pods that exist come after the others.
    """
    listed = list(parts)
    listed.sort(key=lambda part: len(part.waiting) < part.missing)
    ordered = [pod for part in listed for pod in part.waiting]
    seen: set[PodKey] = {pod.key for pod in ordered}
    return (*ordered, *(pod for pod in waiting if pod.key not in seen))


def lacking(rules: Sequence[PartRule], parts: Iterable[Part]) -> tuple[PartRule, int] | None:
    """Return a rule of which fewer small gangs can become whole than must be, and how many can."""
    listed = list(parts)
    for rule in rules:
        able = sum(
            part.key[0] == rule.name and len(part.waiting) >= part.missing for part in listed
        )
        if able < rule.minimum:
            return rule, able
    return None
