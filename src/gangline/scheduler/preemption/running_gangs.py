"""Running gangs as preemption sees them, kept between cycles.

Most gangs do not change from one cycle to the next. The cache of the scheduler drops an entry when
a member, the group or the rows of the nodes change.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.victim_sets import RunningGang, is_evictable
from gangline.scheduler.queueing.subgroups import split_into_subgroups
from gangline.scheduler.types.types import GangId, PodInfo, PodKey, PodShape

PlacedPod = tuple[PodInfo, int]
"""A running pod and its row."""


@dataclass(frozen=True, slots=True)
class KnownGang:
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


def known_gangs(state: SchedulerCache) -> Iterator[tuple[GangId, KnownGang]]:
    """Yield all entries, in the order of their identities."""
    known = state.derived.running
    for gang, members in sorted(state.placed_members.items()):
        found = known.get(gang)
        if not isinstance(found, KnownGang):
            found = known[gang] = _known_gang(state, gang, members)
        yield gang, found


def known_gang(state: SchedulerCache, gang: RunningGang) -> KnownGang | None:
    """Return the entry of this gang; None: there is none."""
    found = state.derived.running.get(gang.id)
    return found if isinstance(found, KnownGang) and found.gang is gang else None


def placed_on_rows(state: SchedulerCache, pods: Iterable[PodInfo]) -> list[PlacedPod]:
    """Return pods with their rows, as far as their nodes exist."""
    rows = state.nodes.rows
    return [(pod, rows[pod.node]) for pod in pods if pod.node is not None and pod.node in rows]


def rows_by_shape(placed: Iterable[PlacedPod]) -> Mapping[PodShape, list[int]]:
    """Return the rows of pods by shape, once for each pod."""
    found: dict[PodShape, list[int]] = defaultdict(list)
    for pod, row in placed:
        found[pod.shape].append(row)
    return found


def _known_gang(state: SchedulerCache, id_: GangId, members: Mapping[PodKey, PodInfo]) -> KnownGang:
    pods = tuple(p for p in members.values() if not p.is_terminating and is_evictable(p))
    leaving = tuple(pod for pod in members.values() if pod.is_terminating)
    group = next(iter(members.values())).group
    queue = state.usage.queue_of(group)
    placed = placed_on_rows(state, pods)
    gang = _running_gang(state, id_, queue, pods) if pods else None
    return KnownGang(gang, queue, leaving, placed, rows_by_shape(placed))


def _running_gang(
    state: SchedulerCache, id_: GangId, queue: str, pods: tuple[PodInfo, ...]
) -> RunningGang:
    group = pods[0].group
    info = state.groups.get(group) if group is not None else None
    priority = info.priority if info is not None else max(pod.priority for pod in pods)
    rules = info.subgroups if info is not None else ()
    subgroups = split_into_subgroups(rules, pods, ()) if rules else ()
    return RunningGang(id_, queue, priority, pods, info, subgroups)
