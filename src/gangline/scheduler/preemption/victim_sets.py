"""Running gangs as preemption candidates, in units of pods that are evicted together."""

from collections import Counter
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gangline.scheduler.queueing.subgroups import Subgroup
from gangline.scheduler.types.types import GangId, PodGroupInfo, PodInfo, PodKey, SubgroupRule

SYSTEM_PRIORITY = 2_000_000_000
"""Pods of this priority and above belong to the cluster itself: they are never evicted."""
SYSTEM_NAMESPACE = "kube-system"
_SYSTEM_PREFIX = f"{SYSTEM_NAMESPACE}/"


def _loses(part: Subgroup, gone: Set[PodKey]) -> bool:
    return any(pod.key in gone for pod in part.running)


@dataclass(frozen=True, eq=False)
class RunningGang:
    """A gang with evictable pods. It is kept between cycles (``running_gangs``): so what follows
    from it alone is computed once.
    """

    id: GangId
    queue: str
    priority: int
    pods: tuple[PodInfo, ...]
    info: PodGroupInfo | None
    subgroups: tuple[Subgroup, ...] = ()
    """Its subgroups (``split_into_subgroups``)."""

    @cached_property
    def may_be_broken(self) -> bool:
        """True if all pods may be evicted together. A gang without a minimum is never broken."""
        info = self.info
        has_minimum = info is None or bool(info.min_member or info.subgroups)
        return has_minimum and all(pod.preemptable for pod in self.pods)

    @cached_property
    def spare_parts(self) -> tuple[tuple[PodInfo, ...], ...]:
        """Pods of which the gang can run without some (``can_spare``): single ones, but subgroups
        only completely. Lowest priority first, then the newest.
        """
        if self.info is None or len(self.pods) <= self.info.min_member:
            return ()
        grouped = {pod.key for part in self.subgroups for pod in part.running}
        roles, keep = Counter(pod.role for pod in self.pods), dict(self.info.min_task_member)
        parts: list[tuple[PodInfo, ...]] = [
            (pod,)
            for pod in self.pods
            if pod.key not in grouped and roles[pod.role] > keep.get(pod.role, 0)
        ]
        parts += [part.running for part in self.subgroups if self.can_spare(part.running)]
        spare = [part for part in parts if all(pod.preemptable for pod in part)]
        return tuple(sorted(spare, key=lambda part: least_lost_work(part[0])))

    def can_spare(self, pods: Collection[PodInfo]) -> bool:
        """Return whether the gang can run without these pods."""
        if self.info is None or len(self.pods) - len(pods) < self.info.min_member:
            return False
        gone = {pod.key for pod in pods}
        if any(
            self._complete_subgroups(rule, gone) < rule.min_subgroups
            for rule in self.info.subgroups
            if any(part.key[0] == rule.name and _loses(part, gone) for part in self.subgroups)
        ):
            return False
        running, keep = Counter(pod.role for pod in self.pods), dict(self.info.min_task_member)
        lost = Counter(pod.role for pod in pods)
        return all(running[role] - count >= keep.get(role, 0) for role, count in lost.items())

    def _complete_subgroups(self, rule: SubgroupRule, gone: Set[PodKey]) -> int:
        parts = [part for part in self.subgroups if part.key[0] == rule.name]
        return sum(not part.missing and not _loses(part, gone) for part in parts)

    def lost_work(self, now: float) -> float:
        """Pod-seconds of work since the last checkpoint, which an eviction would lose."""
        return sum([count * max(0.0, now - since) for since, count in self._work_begun])

    @cached_property
    def _work_begun(self) -> tuple[tuple[float, int], ...]:
        """The times since which work would be lost, each with its number of pods."""
        saved = self.info.checkpointed_at if self.info is not None else 0.0
        starts = [pod.started_at or pod.created.timestamp() for pod in self.pods]
        return tuple(Counter(max(saved, start) for start in starts).items())


class EvictionCost(NamedTuple):
    """The cost of a set of victims; the smallest is the best.

    Pods that gangs can run without are cheaper than any gang. Then the highest priority of a broken
    gang decides, the number of broken gangs, the highest priority of a gang that only shrinks, the
    lost work, and the number of pods. Each part grows with the set, so parts of a set never cost
    more than the set.
    """

    broken_tier: tuple[int, int] | tuple[()] = ()
    """Queue priority and gang priority; empty: no gang is broken."""
    broken: int = 0
    shrunk_tier: tuple[int, int] | tuple[()] = ()
    lost_work: float = 0.0
    """In pod-seconds."""
    pods: int = 0

    def plus(self, other: "EvictionCost") -> "EvictionCost":
        """Return the cost of two disjoint sets together."""
        return EvictionCost(
            max(self.broken_tier, other.broken_tier),
            self.broken + other.broken,
            max(self.shrunk_tier, other.shrunk_tier),
            self.lost_work + other.lost_work,
            self.pods + other.pods,
        )


NO_COST = EvictionCost()


@dataclass(frozen=True, slots=True, eq=False)
class EvictionUnit:
    """Pods that are evicted together: a complete gang, or a pod or subgroup that its gang can run
    without.
    """

    gang: RunningGang
    pods: tuple[PodInfo, ...]
    breaks_gang: bool
    """True if the rest of the gang cannot continue: then all of its pods are evicted."""
    cost: EvictionCost

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: the cheapest first, then by name."""
        tail = () if self.breaks_gang else least_lost_work(self.pods[0])
        return (self.cost, self.gang.id, tail)


def eviction_units(gang: RunningGang, queue_priority: int, now: float) -> list[EvictionUnit]:
    """Return the ways to evict pods of a gang: each spare part by itself, and the complete gang."""
    tier = (queue_priority, gang.priority)
    units = [
        EvictionUnit(gang, part, False, EvictionCost(shrunk_tier=tier, pods=len(part)))
        for part in gang.spare_parts
    ]
    if gang.may_be_broken:
        cost = EvictionCost(tier, 1, (), gang.lost_work(now), len(gang.pods))
        units.append(EvictionUnit(gang, gang.pods, True, cost))
    return units


def total_cost(units: Iterable[EvictionUnit]) -> EvictionCost:
    total = NO_COST
    for unit in units:
        total = total.plus(unit.cost)
    return total


def least_lost_work(pod: PodInfo) -> tuple[int, float, str]:
    """Sort key: lowest priority first, then the newest."""
    return (pod.priority, -pod.created.timestamp(), pod.key)


def is_evictable(pod: PodInfo) -> bool:
    """Return whether a pod is neither a system pod nor a pod of another scheduler."""
    system = pod.priority >= SYSTEM_PRIORITY or pod.key.startswith(_SYSTEM_PREFIX)
    return not system and (pod.is_ours or pod.group is not None)


def pods_to_evict(chosen: Iterable[EvictionUnit]) -> tuple[PodInfo, ...]:
    """Return all pods of these units, by key."""
    pods = {pod.key: pod for unit in chosen for pod in unit.pods}
    return tuple(pods[key] for key in sorted(pods))


def without_overlap(units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
    """Return the units without pods of gangs that other units evict completely."""
    listed = list(units)
    broken = {unit.gang.id for unit in listed if unit.breaks_gang}
    return [unit for unit in listed if unit.breaks_gang or unit.gang.id not in broken]
