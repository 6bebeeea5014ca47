"""Protected run time: for how long a started gang is not evicted for others.

A queue or a PriorityClass states it (``gangline.dev/protected-run-time-seconds``). A queue without
it has that of its nearest ancestor. If both state one, the longer one counts.
"""

from functools import cache

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.victim_sets import RunningGang
from gangline.scheduler.queueing.queue_tree import ancestors
from gangline.scheduler.types.types import PodInfo


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
        stated = (queues[each].protected_s for each in (name, *ancestors(queues, name)))
        return next((seconds for seconds in stated if seconds), 0.0)

    def _class_protection(self, pod: PodInfo) -> float:
        group = self._state.groups.get(pod.group) if pod.group is not None else None
        name = group.priority_class if group is not None else pod.quota_attributes.priority_class
        return self._state.class_protection.get(name or "", 0.0)
