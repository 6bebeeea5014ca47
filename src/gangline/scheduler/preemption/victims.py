"""Running gangs as preemption sees them: what may be evicted together, at which cost, and what that
frees.

An eviction unit is a complete gang, or a pod or subgroup that its gang can run without.
``EvictionCost`` orders sets of units. ``Clearing`` computes the free amounts after pods have ended:
those that are ending already, and those to be evicted.

Most gangs do not change from one cycle to the next, so their values are kept in the cache, which
drops an entry when a member, the group or the rows of the nodes change.

A started gang may be protected for a while: a queue or a PriorityClass states the run time
(``gangline.dev/protected-run-time-seconds``). A queue without it has that of its nearest ancestor.
If both state one, the longer one counts.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.volume_limits import ATTACHABLE, detached_volumes
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.scores import Amounts
from gangline.scheduler.queueing.gangs import Subgroup, split_into_subgroups
from gangline.scheduler.queueing.queue_tree import ancestors
from gangline.scheduler.types import (
    EvictionMode,
    GangId,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PodShape,
    SubgroupRule,
)

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


PlacedPod = tuple[PodInfo, int]
"""A running pod and its row."""


@dataclass(frozen=True, slots=True)
class PlacedGang:
    """The pods of one entry of ``placed_members``."""

    gang: RunningGang | None
    """None: none of them may ever be evicted."""
    queue: str
    leaving: tuple[PodInfo, ...]
    """Terminating pods; the gang is without them."""
    placed: list[PlacedPod]
    """The pods of the gang with their rows, as far as their nodes exist."""
    rows: Mapping[PodShape, list[int]]
    """These rows by shape, once for each pod."""


def placed_gangs(state: SchedulerCache) -> Iterator[tuple[GangId, PlacedGang]]:
    """Yield all entries, in the order of their identities."""
    cached = state.derived.running
    for gang, members in sorted(state.placed_members.items()):
        placed = cached.get(gang)
        if not isinstance(placed, PlacedGang):
            placed = cached[gang] = _placed_gang(state, gang, members)
        yield gang, placed


def placed_gang(state: SchedulerCache, gang: RunningGang) -> PlacedGang | None:
    """Return the entry of this gang; None: there is none."""
    placed = state.derived.running.get(gang.id)
    return placed if isinstance(placed, PlacedGang) and placed.gang is gang else None


def placed_on_rows(state: SchedulerCache, pods: Iterable[PodInfo]) -> list[PlacedPod]:
    """Return pods with their rows, as far as their nodes exist."""
    rows = state.nodes.rows
    return [(pod, rows[pod.node]) for pod in pods if pod.node is not None and pod.node in rows]


def rows_by_shape(placed: Iterable[PlacedPod]) -> Mapping[PodShape, list[int]]:
    rows: dict[PodShape, list[int]] = defaultdict(list)
    for pod, row in placed:
        rows[pod.shape].append(row)
    return rows


def _placed_gang(
    state: SchedulerCache, id_: GangId, members: Mapping[PodKey, PodInfo]
) -> PlacedGang:
    pods = tuple(p for p in members.values() if not p.is_terminating and is_evictable(p))
    leaving = tuple(pod for pod in members.values() if pod.is_terminating)
    group = next(iter(members.values())).group
    queue = state.usage.queue_of(group)
    placed = placed_on_rows(state, pods)
    gang = _running_gang(state, id_, queue, pods) if pods else None
    return PlacedGang(gang, queue, leaving, placed, rows_by_shape(placed))


def _running_gang(
    state: SchedulerCache, id_: GangId, queue: str, pods: tuple[PodInfo, ...]
) -> RunningGang:
    group = pods[0].group
    info = state.groups.get(group) if group is not None else None
    priority = info.priority if info is not None else max(pod.priority for pod in pods)
    if info is not None and info.evicted is not EvictionMode.MINIMUM:
        minimum = len(pods) if info.evicted is EvictionMode.ALL else 0
        info = replace(info, min_member=minimum, min_task_member=())
    rules = info.subgroups if info is not None else ()
    subgroups = split_into_subgroups(rules, pods, ()) if rules else ()
    return RunningGang(id_, queue, priority, pods, info, subgroups)


class ProtectedGangs:
    """Which running gangs are within their protected run time, at one moment."""

    def __init__(self, state: SchedulerCache, now: float) -> None:
        self._state, self._now = state, now
        self._is_used = bool(state.class_protection) or any(
            queue.protected_s for queue in state.queues.values()
        )
        self._of_queue = cache(self._queue_protection)

    def is_protected(self, gang: RunningGang) -> bool:
        """Return whether no pod of the gang may be evicted for others now."""
        return self._is_used and self._now < self._end(gang.queue, gang.pods)

    def next_end(self) -> float | None:
        """Return the time at which the first protected gang loses its protection; None: none is
        protected.
        """
        if not self._is_used:
            return None
        state = self._state
        gangs = (tuple(pods.values()) for pods in state.placed_members.values())
        ends = (self._end(state.usage.queue_of(pods[0].group), pods) for pods in gangs)
        return min((end for end in ends if end > self._now), default=None)

    def _end(self, queue: str, pods: tuple[PodInfo, ...]) -> float:
        """Return when the protection of a gang ends; its past if it has none."""
        protected_s = max(self._of_queue(queue), self._class_protection(pods[0]))
        # Pods that are bound and have not started keep their full protection.
        started = min((pod.started_at for pod in pods if pod.started_at), default=self._now)
        return started + protected_s

    def _queue_protection(self, name: str) -> float:
        queues = self._state.queues
        if name not in queues:
            return 0.0
        stated = (queues[queue].protected_s for queue in (name, *ancestors(queues, name)))
        return next((seconds for seconds in stated if seconds), 0.0)

    def _class_protection(self, pod: PodInfo) -> float:
        group = self._state.groups.get(pod.group) if pod.group is not None else None
        name = group.priority_class if group is not None else pod.quota_attributes.priority_class
        return self._state.class_protection.get(name or "", 0.0)


_NOTHING: Mapping[int, int] = {}


def end_pods(
    state: SchedulerCache,
    scratch: ScratchAllocation,
    pods: Sequence[PlacedPod],
    earlier: Iterable[PlacedPod] = (),
) -> None:
    """Count running pods as ended in a scratch allocation.

    Args:
        earlier: pods that count as ended already.
    """
    demand = state.nodes.demand
    freed = [
        (column, row, amount)
        for pod, row in pods
        for column, amount, _ in demand(pod.shape.request).terms
    ]
    scratch.end_pods(pods, freed)
    detach_volumes(state, scratch, pods, earlier)


def detach_volumes(
    state: SchedulerCache,
    scratch: ScratchAllocation,
    pods: Iterable[PlacedPod],
    earlier: Iterable[PlacedPod] = (),
) -> None:
    """Free the attachments that no other pod on the node uses."""
    if not state.storage.limits:
        return
    before, ended_users = _claim_users(earlier), _claim_users(pods)
    columns = state.nodes.columns
    for row, ended in ended_users.items():
        node, gone = state.nodes.name_of(row), before.get(row, [])
        counted = {d.resource: d.count for d in detached_volumes(state.storage, node, gone)}
        for detached in detached_volumes(state.storage, node, [*gone, *ended]):
            column = columns.get(detached.resource)
            if column is not None:
                count = detached.count - counted.get(detached.resource, 0)
                claims = {columns[name] for name in detached.claim_resources if name in columns}
                scratch.detach_volumes(row, column, count, claims)


def _claim_users(pods: Iterable[PlacedPod]) -> dict[int, list[PodInfo]]:
    by_row: dict[int, list[PodInfo]] = defaultdict(list)
    for pod, row in pods:
        if pod.claims:
            by_row[row].append(pod)
    return by_row


class EndingPods:
    """Pods that end whatever else is decided, and the amounts that they free.

    They are added up once for all preemptors of a cycle.
    """

    def __init__(self, state: SchedulerCache, pods: Iterable[PodInfo] = ()) -> None:
        self.placed: list[PlacedPod] = []
        self.freed: Amounts = np.zeros_like(state.nodes.used)
        self._state = state
        self.add(pods)

    def add(self, pods: Iterable[PodInfo]) -> None:
        demand = self._state.nodes.demand
        for pod, row in placed_on_rows(self._state, pods):
            self.placed.append((pod, row))
            for column, amount, _ in demand(pod.shape.request).terms:
                self.freed[column, row] += amount


class Clearing:
    """Free amounts of a scratch allocation after evictions.

    Args:
        scratch: the allocation; it is left as it is.
        ending: pods that are ending already.
    """

    def __init__(
        self, state: SchedulerCache, scratch: ScratchAllocation, ending: EndingPods
    ) -> None:
        self.state, self.ending = state, ending.placed
        self._pods: dict[EvictionUnit, list[PlacedPod]] = {}
        self._by_row: dict[EvictionUnit, dict[int, list[PodInfo]]] = {}
        self._freed: dict[EvictionUnit, dict[int, dict[int, int]]] = {}
        self._scratch, self._ending = scratch, ending

    @cached_property
    def base(self) -> ScratchAllocation:
        """The allocation after the ending pods have ended. Most searches end without it."""
        base = self._scratch.fork(self._scratch.free + self._ending.freed)
        base.end_pods(self.ending, ())
        detach_volumes(self.state, base, self.ending)
        return base

    def pods(self, unit: EvictionUnit) -> list[PlacedPod]:
        placed = self._pods.get(unit)
        if placed is None:
            gang_pods = placed_gang(self.state, unit.gang) if unit.breaks_gang else None
            placed = gang_pods.placed if gang_pods else placed_on_rows(self.state, unit.pods)
            self._pods[unit] = placed
        return placed

    def pods_by_row(self, unit: EvictionUnit) -> Mapping[int, list[PodInfo]]:
        by_row = self._by_row.get(unit)
        if by_row is None:
            by_row = self._by_row[unit] = {}
            for pod, row in self.pods(unit):
                by_row.setdefault(row, []).append(pod)
        return by_row

    def freed_by(self, unit: EvictionUnit, row: int) -> Mapping[int, int]:
        """Return by column what a unit frees on a row."""
        rows = self._freed.get(unit)
        if rows is None:
            rows = self._freed[unit] = {}
            demand = self.state.nodes.demand
            for pods_row, pods in self.pods_by_row(unit).items():
                freed: dict[int, int] = dict(self.detached_by(unit, pods_row))
                for pod in pods:
                    for column, amount, _ in demand(pod.shape.request).terms:
                        freed[column] = freed.get(column, 0) + amount
                rows[pods_row] = freed
        return rows.get(row, _NOTHING)

    def detached_by(self, unit: EvictionUnit, row: int) -> dict[int, int]:
        """Return by column how many attachments on a row no pod outside of the unit uses."""
        storage, nodes = self.state.storage, self.state.nodes
        pods = self.pods_by_row(unit).get(row, ()) if storage.limits else ()
        freed: dict[int, int] = {}
        for detached in detached_volumes(storage, nodes.name_of(row), pods) if pods else ():
            column = nodes.columns.get(detached.resource)
            if column is not None:
                freed[column] = detached.count
                # Claims of several pods have columns of their own, which depend on this one.
                for other, taking in nodes.attachment_columns.items():
                    if taking.limit_column == column:
                        freed[other] = ATTACHABLE
        return freed

    def free_after(self, units: Iterable[EvictionUnit]) -> Amounts:
        """Return the free amounts after the eviction of these units, which share no pod.

        Attachments that end with them are not counted.
        """
        if self.state.storage.limits:
            free = self.base.free.copy()
        else:
            free = self._scratch.free + self._ending.freed
        self.add_freed(free, units)
        return free

    def after(
        self, units: Iterable[EvictionUnit], free: Amounts | None = None
    ) -> ScratchAllocation:
        """Return the allocation after the eviction of these units.

        Args:
            free: the result of ``free_after``, if the caller has it.
        """
        listed = list(units)
        cleared = self.base.fork(self.free_after(listed) if free is None else free)
        gone = list(chain.from_iterable(map(self.pods, listed)))
        cleared.end_pods(gone, ())
        detach_volumes(self.state, cleared, gone, self.ending)
        return cleared

    def add_freed(self, free: Amounts, units: Iterable[EvictionUnit]) -> None:
        """Add what the requests of these units free; pods of one shape are added together."""
        rows: dict[PodShape, list[int]] = defaultdict(list)
        for unit in units:
            gang_pods = placed_gang(self.state, unit.gang) if unit.breaks_gang else None
            by_shape = gang_pods.rows if gang_pods else rows_by_shape(self.pods(unit))
            for shape, listed in by_shape.items():
                rows[shape] += listed
        for shape, listed in rows.items():
            counts = np.bincount(listed, minlength=free.shape[1])
            for column, amount, _ in self.state.nodes.demand(shape.request).terms:
                free[column] += amount * counts


def ending_pods(state: SchedulerCache) -> list[PodInfo]:
    """Return the terminating pods whose resources others may use once they have ended.

    A gang that runs and misses a terminating member gets its node back (see ``reservations``).
    """
    ending: list[PodInfo] = []
    for gang, placed in placed_gangs(state):
        leaving = placed.leaving
        if not leaving or leaving[0].group in state.restarting_groups:
            continue
        group = state.groups.get(leaving[0].group) if leaving[0].group is not None else None
        staying = len(state.placed_members[gang]) - len(leaving)
        if group is None or not staying or staying >= group.min_member:
            ending += sorted(leaving, key=lambda pod: pod.key)
    return ending
