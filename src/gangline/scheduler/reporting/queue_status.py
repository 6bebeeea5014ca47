"""Writes queue statuses, and events about configuration problems of queues, only on change."""

import time
from collections import Counter

import msgspec

from gangline.api.resource_list import format_resources
from gangline.api.resources import QUEUES
from gangline.api.volcano.scheduling import DEFAULT_QUEUE, PodGroup, Queue, QueueStatus
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import NotFound
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.queueing.queue_tree import queue_problems
from gangline.scheduler.reporting.pod_group_status import (
    COMPLETED,
    INQUEUE,
    PENDING,
    RUNNING,
    UNKNOWN,
)
from gangline.scheduler.types.types import INTERNAL_RESOURCE_PREFIXES

OPEN, CLOSING, CLOSED = "Open", "Closing", "Closed"
INVALID = "InvalidQueue"


class QueueStatusReporter:
    """Keeps queue statuses consistent with the groups and the usage of each queue."""

    def __init__(
        self, client: ApiClient, feed: SchedulerInformers, events: EventRecorder, every_s: float
    ) -> None:
        self._client, self._informers, self._events = client, feed, events
        self._every_s = every_s
        feed.queues.add_listener(self._on_queue)
        feed.groups.add_listener(self._on_group)
        self._written_at: dict[str, float] = {}
        self._reported: dict[str, str] = {}
        self.controller: Controller[str] = Controller("scheduler-queues", self._write, workers=1)

    def queue_changed(self, queue: str) -> None:
        """Check a queue: its groups or its usage have changed."""
        self.controller.queue.add(queue)

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        for queue in (old, new):
            if queue is not None:
                self.queue_changed(queue.metadata.name)

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Check the queue of a group, and its former queue."""
        for group in (old, new):
            if group is not None:
                self.queue_changed(group.spec.queue or DEFAULT_QUEUE)

    async def _write(self, name: str) -> ReconcileResult:
        queue = self._informers.queues.get("", name)
        if queue is None:
            self._written_at.pop(name, None)
            self._reported.pop(name, None)
            return ReconcileDone()
        since = time.monotonic() - self._written_at.get(name, float("-inf"))
        if since < self._every_s:
            return RequeueAfter(self._every_s - since)
        self._report_problem(name)
        desired = self._status(name, queue.status)
        if desired == queue.status:
            return ReconcileDone()
        self._written_at[name] = time.monotonic()
        body = {
            "metadata": {"uid": queue.metadata.uid},
            # A merge patch resets a count or an amount only if it names it.
            "status": {
                **{field: getattr(desired, field) for field in _COUNTS.values()},
                "state": desired.state,
                "allocated": dict.fromkeys(queue.status.allocated) | desired.allocated,
            },
        }
        try:
            await self._client.patch(QUEUES, name, body, subresource="status")
        except NotFound:
            return ReconcileDone()
        return ReconcileDone()

    def _status(self, name: str, current: QueueStatus) -> QueueStatus:
        phases = Counter(
            group.status.phase
            for group in self._informers.groups.items()
            if (group.spec.queue or DEFAULT_QUEUE) == name
        )
        used = self._informers.state.usage.by_queue.get(name, Counter())
        allocated = {
            resource: amount
            for resource, amount in used.items()
            if amount > 0 and not resource.startswith(INTERNAL_RESOURCE_PREFIXES)
        }
        return msgspec.structs.replace(
            current,
            state=_state(current.state, sum(phases.values()) - phases[COMPLETED]),
            allocated=format_resources(allocated),
            **{field: phases[phase] for phase, field in _COUNTS.items()},
        )

    def _report_problem(self, name: str) -> None:
        wrong = queue_problems(self._informers.state.queues).get(name, "")
        queue = self._informers.queues.get("", name)
        if wrong and wrong != self._reported.get(name) and queue is not None:
            self._events.event(queue, "Warning", INVALID, f"Queue {name!r}: {wrong}.")
        self._reported[name] = wrong


def _state(current: str, held: int) -> str:
    """Return the state of a queue; a closing queue is closed once no group is left in it."""
    if current in {CLOSING, CLOSED}:
        return CLOSING if held else CLOSED
    return current or OPEN


_COUNTS = {
    PENDING: "pending",
    INQUEUE: "inqueue",
    RUNNING: "running",
    UNKNOWN: "unknown",
    COMPLETED: "completed",
}
