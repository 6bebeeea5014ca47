"""Statuses of queues, events about their configuration problems, and metrics of queues and gangs.

Statuses and events are written only on change. Metrics are computed from the cache when they are
scraped. Their labels are queues, resources and reasons from a fixed table. Queues are objects of
administrators; nothing that a user of a queue does adds a label value.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gangline.api.resource_list import format_resources
from gangline.api.resources import QUEUES
from gangline.api.volcano.scheduling import DEFAULT_QUEUE, ROOT_QUEUE, PodGroup, Queue, QueueStatus
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import NotFound
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import UNCOUNTED_RESOURCE, QueueTree, queue_problems
from gangline.scheduler.reporting.reporter import (
    COMPLETED,
    INQUEUE,
    PENDING,
    RUNNING,
    UNKNOWN,
    phase_of,
)
from gangline.scheduler.types import (
    INTERNAL_RESOURCE_PREFIXES,
    GroupKey,
    PendingReason,
    PodInfo,
    kubernetes_group_key,
)

OPEN, CLOSING, CLOSED = "Open", "Closing", "Closed"
INVALID = "InvalidQueue"
_CPU = "cpu"
_MILLI = 1000


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
        state = self._informers.state
        for group in self._informers.kubernetes_groups.items():
            key = kubernetes_group_key(group.metadata.namespace, group.metadata.name)
            if (facts := state.groups.get(key)) is not None and facts.queue == name:
                phases[phase_of("", facts, state.members.get(key, {}).values(), None)] += 1
        used = state.usage.by_queue.get(name, Counter())
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


class SchedulerSnapshot(NamedTuple):
    """What the metrics are computed from."""

    state: SchedulerCache
    reasons: tuple[PendingReason, ...]
    """Of the last cycle."""


class OldestGang(NamedTuple):
    """The gang of a queue and reason that has been pending for the longest time."""

    pending_since: float
    """Creation of its oldest pending pod, in seconds since the epoch."""
    request: Mapping[str, int]
    """What it cannot start without."""


class SchedulerQueueMetrics(Collector):
    """Exports the metrics of the scheduler that leads; a standby exports none."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._source: Callable[[], SchedulerSnapshot] | None = None
        self._now = now

    @contextmanager
    def exported(self, source: Callable[[], SchedulerSnapshot]) -> Iterator[None]:
        """Export the metrics of ``source`` while the context is open."""
        self._source = source
        try:
            yield
        finally:
            self._source = None

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics without values, so that registration computes nothing."""
        return _families().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = _families()
        if self._source is None:
            return families.values()
        state, reasons = self._source()
        _add_gangs(families, state, reasons, self._now())
        _add_queues(families, state)
        return families.values()


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"gangline_scheduler_{name}", text, labels=labels)
        for name, text, labels in (
            ("pending_gangs", "Pending gangs; a pod without a gang is one", ("queue", "reason")),
            (
                "oldest_pending_gang_seconds",
                "Age of the gang that has been pending for the longest time",
                ("queue", "reason"),
            ),
            (
                "oldest_pending_gang_request",
                "What the oldest gang that waits for free resources cannot start without",
                ("queue", "resource"),
            ),
            ("pending_request", "What all pending pods of a queue request", ("queue", "resource")),
            (
                "queue_deserved",
                "What a queue deserves: as stated, else its weighted part of what queues request",
                ("queue", "resource"),
            ),
            (
                "queue_allocated",
                "What the pods of a queue and of its child queues use",
                ("queue", "resource"),
            ),
            (
                "queue_borrowed",
                "What a queue uses above what it deserves",
                ("queue", "resource"),
            ),
            ("queue_limit", "What a queue may use at most", ("queue", "resource")),
            ("capacity", "Allocatable amounts of ready nodes", ("resource",)),
            ("free", "Unused amounts of ready nodes", ("resource",)),
        )
    }


def oldest_gangs(
    state: SchedulerCache, reasons: Iterable[PendingReason]
) -> tuple[Counter[tuple[str, str]], dict[tuple[str, str], OldestGang]]:
    """Return the number of pending gangs, and the oldest one, by queue and reason.

    Gangs that were placed or deleted after the cycle are ignored.
    """
    counts: Counter[tuple[str, str]] = Counter()
    oldest: dict[tuple[str, str], OldestGang] = {}
    for pending in reasons:
        queue_and_gang = _pending_gang(state, pending)
        if queue_and_gang is None:
            continue
        queue, gang = queue_and_gang
        key = queue, pending.reason
        counts[key] += 1
        if key not in oldest or gang.pending_since < oldest[key].pending_since:
            oldest[key] = gang
    return counts, oldest


def _pending_gang(state: SchedulerCache, reason: PendingReason) -> tuple[str, OldestGang] | None:
    if reason.group is None:
        pod = state.pending_single_pods.get(reason.pods[0][0]) if reason.pods else None
        if pod is None:
            return None
        return DEFAULT_QUEUE, OldestGang(pod.created.timestamp(), dict(pod.shape.request))
    waiting = state.pending_members.get(reason.group)
    if not waiting:
        return None
    group = state.groups.get(reason.group)
    queue = group.queue if group is not None else DEFAULT_QUEUE
    return queue, _oldest_of(state, reason.group, waiting.values())


def _oldest_of(state: SchedulerCache, group: GroupKey, waiting: Iterable[PodInfo]) -> OldestGang:
    cached = state.derived.pending.get(group)
    if isinstance(cached, PendingGang):
        return OldestGang(cached.pending_since.timestamp(), dict(cached.requested))
    return OldestGang(min(pod.created for pod in waiting).timestamp(), {})


def _add_gangs(
    families: Mapping[str, GaugeMetricFamily],
    state: SchedulerCache,
    reasons: Iterable[PendingReason],
    now: float,
) -> None:
    counts, oldest = oldest_gangs(state, reasons)
    for key, count in sorted(counts.items()):
        families["pending_gangs"].add_metric(key, count)
        families["oldest_pending_gang_seconds"].add_metric(
            key, max(0.0, now - oldest[key].pending_since)
        )
    for (queue, reason), gang in sorted(oldest.items(), key=lambda item: item[0]):
        if reason == messages.NOT_ENOUGH_RESOURCES:
            _add_amounts(families["oldest_pending_gang_request"], queue, gang.request)
    for queue, amounts in sorted(state.pending_usage.by_queue.items()):
        if queue:
            _add_amounts(families["pending_request"], queue, amounts)


def _add_queues(families: Mapping[str, GaugeMetricFamily], state: SchedulerCache) -> None:
    tree = QueueTree.of(state)
    for name, queue in tree.queues.items():
        if name == ROOT_QUEUE:
            continue
        stated = dict(queue.info.deserved)
        for resource, column in tree.columns.items():
            deserved = float(stated.get(resource, queue.fair_share[column]))
            used = float(queue.used[column])
            for family, amount in (
                ("queue_deserved", deserved),
                ("queue_allocated", used),
                ("queue_borrowed", max(0.0, used - deserved)),
                ("queue_limit", float(queue.limit[column])),
            ):
                if np.isfinite(amount):
                    families[family].add_metric((name, resource), _in_units(resource, amount))
    nodes, usable = state.nodes, state.nodes.usable()
    for resource, row in sorted(nodes.columns.items()):
        if resource.startswith(INTERNAL_RESOURCE_PREFIXES):
            continue
        allocatable = nodes.allocatable[row][usable]
        free = np.maximum(allocatable - nodes.used[row][usable], 0)
        for family, amounts in (("capacity", allocatable), ("free", free)):
            families[family].add_metric((resource,), _in_units(resource, float(amounts.sum())))


def _add_amounts(family: GaugeMetricFamily, queue: str, amounts: Mapping[str, int]) -> None:
    for resource, amount in sorted(amounts.items()):
        if (
            amount > 0
            and resource != UNCOUNTED_RESOURCE
            and not resource.startswith(INTERNAL_RESOURCE_PREFIXES)
        ):
            family.add_metric((queue, resource), _in_units(resource, amount))


def _in_units(resource: str, amount: float) -> float:
    """Return cores, bytes or devices: the cache counts thousandths of a core."""
    return amount / _MILLI if resource == _CPU else amount


QUEUE_METRICS = SchedulerQueueMetrics()
REGISTRY.register(QUEUE_METRICS)
