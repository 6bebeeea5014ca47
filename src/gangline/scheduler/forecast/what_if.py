"""Changes of a pending gang that may make it start sooner: fewer members, topology, queue."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gangline.api.volcano.scheduling import ROOT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.forecast.forecast import Change
from gangline.scheduler.queueing.queue_tree import ancestors
from gangline.scheduler.types.types import GroupKey, PodGroupInfo, PodKey

MAX_QUEUES = 4
"""Number of other queues that are tried."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change of a gang."""

    text: str
    change: Change


def what_ifs(state: SchedulerCache, key: GroupKey) -> Iterator[WhatIf]:
    """Yield the changes of a pending gang that are worth a simulation."""
    group = state.groups.get(key)
    if group is None:
        return
    if group.min_member > 1 and not group.subgroups:
        yield _fewer_members(state, group, group.min_member // 2)
    if group.network is not None and group.network.hard:
        yield WhatIf("without a required network domain", _set(replace(group, network=None)))
    inner = {queue.parent for queue in state.queues.values()} | {ROOT_QUEUE, group.queue}
    others = [
        name
        for name in sorted(state.queues)
        if name not in inner and all(state.queues[each].open for each in _path(state, name))
    ]
    for name in others[:MAX_QUEUES]:
        yield WhatIf(f"in queue {name!r}", _set(replace(group, queue=name)))


def _path(state: SchedulerCache, queue: str) -> list[str]:
    return [queue, *ancestors(state.queues, queue)]


def _set(group: PodGroupInfo) -> Change:
    def change(state: SchedulerCache) -> None:
        state.set_group(group)

    return change


def _fewer_members(state: SchedulerCache, group: PodGroupInfo, count: int) -> WhatIf:
    """Return the gang with fewer members; each role keeps the same part of its pods."""
    part = count / group.min_member
    by_role: dict[str, list[PodKey]] = {}
    for pod in sorted(state.members.get(group.key, {}).values(), key=lambda pod: pod.key):
        by_role.setdefault(pod.role, []).append(pod.key)
    kept = {role: max(1, round(len(pods) * part)) for role, pods in by_role.items()}
    surplus = [key for role, pods in by_role.items() for key in pods[kept[role] :]]
    left = sum(kept.values())
    minimums = tuple((role, min(most, kept.get(role, 0))) for role, most in group.min_task_member)
    smaller = replace(group, min_member=min(left, group.min_member), min_task_member=minimums)

    def change(state: SchedulerCache) -> None:
        for key in surplus:
            state.remove_pod(key)
        state.set_group(smaller)

    return WhatIf(f"with {left} instead of {left + len(surplus)} pods", change)
