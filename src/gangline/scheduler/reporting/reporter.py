"""Reports results: conditions of pod groups and pods, and events, written only when they change.

Each cycle replaces the table of reasons. A work queue holds the objects whose status may differ,
and workers write them in the background. A new reason is written immediately. If only its numbers
have changed, it is written after an interval (``SchedulerSettings.message_update_interval_s``).

Phases of groups are Volcano's: Pending (not admitted), Inqueue (admitted; controllers create its
pods now), Running (its minimum has nodes), Unknown (members run, but the gang is incomplete and
cannot be completed now), Completed (all pods have ended).

An event costs the API server and this process as much as the binding that it reports. Therefore
events wait until no binding is in flight, for at most some seconds; after that the pods of a gang
share one. They are sent one by one, so that the client never drops one for lack of a free slot.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import msgspec

from gangline.api.core.reference import ObjectReference
from gangline.api.meta.objects import Condition, Object
from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS
from gangline.api.volcano.scheduling import PodGroup, PodGroupCondition, PodGroupStatus
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import NotFound
from gangline.kube.http.request import PatchKind
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.admission import (
    check_admission,
    check_queue_limit,
    held_by_gates,
)
from gangline.scheduler.queueing.messages import GANG_CREATION_REASONS
from gangline.scheduler.reporting.kubernetes_groups import (
    kubernetes_group_conditions,
    unwritten_conditions,
)
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    NodeName,
    PendingReason,
    PodBinding,
    PodEviction,
    PodGroupInfo,
    PodInfo,
    PodKey,
    group_name,
    is_kubernetes_group,
)
from gangline.scheduler.wire import LEAN_PODS

log = logging.getLogger(__name__)
MAX_EVENT_DELAY_S = 5.0
MAX_QUEUED_EVENTS = 20_000
"""Further events are dropped: the API server accepts none, or hardly any."""
MAX_LISTED_PODS = 8
"""The most pods that one event lists."""
MAX_PODS_WITH_EVENTS = 64
"""The pods of a larger gang have conditions, but no events while they are pending: the event of
their PodGroup says the same.
"""
MESSAGE_UPDATES_PER_S = 100
"""Messages in which numbers alone have changed are written at most so often, however many gangs and
pods are pending.
"""
POD_SCHEDULED = "PodScheduled"
FAILED_SCHEDULING = "FailedScheduling"
MAX_STATUS_DELAY_S = 5.0
"""Maximal delay of status writes behind bindings. A status write costs the API server more than a
binding, and pods bound meanwhile save further ones.
"""
LIMIT_CHECK_S = 2.0
"""Interval at which a gang without pods is checked against the limit of its queue."""
PENDING, INQUEUE, RUNNING, UNKNOWN, COMPLETED = (
    "Pending",
    "Inqueue",
    "Running",
    "Unknown",
    "Completed",
)
UNSCHEDULABLE, SCHEDULED = "Unschedulable", "Scheduled"
START_EXPECTED = "StartExpected"
"""Condition with the place of a pending gang in the line of its queue, and its expected start."""
FORECAST = "Forecast"
"""Reason of that condition."""
_NOT_ADMITTED_REASONS = frozenset(
    {
        messages.NO_SUCH_QUEUE,
        messages.QUEUE_CLOSED,
        messages.QUOTA_EXCEEDED,
        messages.OVERCOMMITTED,
    }
)
K = TypeVar("K", bound=str)


class ReportSubject(NamedTuple):
    """The object that a report is about."""

    kind: str
    """``PodGroup`` or ``Pod``."""
    key: str


class PodMessage(NamedTuple):
    """The report about a pending pod."""

    reason: str
    text: str
    group: GroupKey | None
    nominated_node: str = ""
    """The node that evictions make free for it; autoscalers read this. Empty: none."""


class PendingReporter:
    """Writes the reasons of the last cycle to conditions and events."""

    def __init__(
        self,
        client: ApiClient,
        feed: SchedulerInformers,
        events: EventRecorder,
        settings: SchedulerSettings,
        in_flight: BindingsInFlight,
    ) -> None:
        self._client = client
        self._bindings_in_flight = in_flight
        self._informers = feed
        self._events = events
        self._settings = settings
        self._reasons: dict[int, PendingReason] = {}
        """All reasons of the last cycle by their identity."""
        self._nominated: dict[PodKey, NodeName] = {}
        self._pending_reasons: dict[GroupKey, PendingReason] = {}
        self._messages: dict[PodKey, PodMessage] = {}
        self._expected_starts: Mapping[GroupKey, str] = {}
        self._forming_since: dict[GroupKey, float] = {}
        self._written: dict[ReportSubject, tuple[float, str]] = {}
        """Time and reason of the last report about an object."""
        self._last_written: dict[GroupKey, tuple[str, PodGroupStatus]] = {}
        self._disrupted: dict[GroupKey, str] = {}
        """Kubernetes' groups that lose pods to a preemption, with the reason."""
        self._status_subresource = "status"
        self.controller: Controller[ReportSubject] = Controller(
            "scheduler-status", self._write, workers=settings.status_writers
        )

    def set_result(self, decision: CycleResult) -> None:
        """Replace the reasons by those of a cycle, and queue the objects whose report differs.

        With thousands of pending gangs nearly all reasons are the objects of the last cycle: only
        the others are compared, as this runs in every cycle.
        """
        reasons = {id(reason): reason for reason in decision.pending_reasons}
        nominated = {
            pod: node
            for reservation in decision.reservations.values()
            if reservation.preempting
            for pod, node in reservation.nodes
        }
        former = self._reasons
        if nominated != self._nominated:
            ended, new = list(former.values()), list(reasons.values())
        else:
            ended = [reason for key, reason in former.items() if key not in reasons]
            new = [reason for key, reason in reasons.items() if key not in former]
        old_reasons = self._pending_reasons
        self._reasons, self._nominated = reasons, nominated
        self._pending_reasons = {
            reason.group: reason for reason in reasons.values() if reason.group is not None
        }
        groups = {reason.group for reason in (*ended, *new) if reason.group is not None}
        self._note_forming(groups)
        changed = {key for key in groups if old_reasons.get(key) != self._pending_reasons.get(key)}
        self._add("PodGroup", changed)
        self._add("Pod", self._replace_messages(ended, new))
        self._add("PodGroup", decision.admitted)

    def _note_forming(self, groups: Iterable[GroupKey]) -> None:
        """Note since when the pods of these groups are being created."""
        now = time.monotonic()
        for key in groups:
            reason = self._pending_reasons.get(key)
            if reason is not None and reason.reason in GANG_CREATION_REASONS:
                self._forming_since.setdefault(key, now)
            else:
                self._forming_since.pop(key, None)

    def _replace_messages(
        self, ended: Iterable[PendingReason], new: Iterable[PendingReason]
    ) -> list[PodKey]:
        """Replace the messages of pods; return the pods that have another one now."""
        former = {key: self._messages.pop(key, None) for reason in ended for key, _ in reason.pods}
        messages = {
            key: PodMessage(reason.reason, text, reason.group, self._nominated.get(key, ""))
            for reason in new
            for key, text in reason.pods
        }
        self._messages |= messages
        return [key for key, message in messages.items() if former.get(key) != message]

    def set_expected_starts(self, expected: Mapping[GroupKey, str]) -> None:
        """Replace the expected starts of pending gangs, and queue the groups that they change."""
        changed = _changed_keys(self._expected_starts, expected)
        self._expected_starts = expected
        self._add("PodGroup", changed)

    def pending_groups(self) -> Mapping[GroupKey, PendingReason]:
        """Return the pending gangs of the last cycle, in the order in which it served them."""
        return self._pending_reasons

    def group_changed(self, group: GroupKey) -> None:
        """Check a group's status: the group or a member has changed."""
        self._add("PodGroup", [group])

    def pod_bound(self, binding: PodBinding) -> None:
        """Forget the report about a pod that is bound now."""
        self._written.pop(ReportSubject("Pod", binding.pod), None)

    def pod_evicted(self, eviction: PodEviction) -> None:
        pod = _pod_reference(eviction.pod, eviction.uid)
        self._events.event(pod, "Normal", "Preempted", f"Evicted: {eviction.reason}")
        if eviction.group is not None and is_kubernetes_group(eviction.group):
            self._disrupted[eviction.group] = eviction.reason
            self.group_changed(eviction.group)

    def _add(self, kind: str, keys: Iterable[str]) -> None:
        for key in keys:
            self.controller.queue.add(ReportSubject(kind, key))

    async def _write(self, subject: ReportSubject) -> ReconcileResult:
        # A writer that finds nothing to write does not wait for anything. At the start, with many
        # groups, no cycle could run until it has checked all of them.
        await asyncio.sleep(0)
        # Before the desired status is computed: what is bound meanwhile saves this write.
        try:
            async with self._bindings_in_flight.turn_to_write(MAX_STATUS_DELAY_S):
                if subject.kind == "Pod":
                    return await self._write_pod(subject)
                if is_kubernetes_group(subject.key):
                    return await self._write_kubernetes_group(subject)
                return await self._write_group(subject)
        except NotFound:
            # The object was deleted meanwhile: there is nothing to report.
            self._written.pop(subject, None)
            return ReconcileDone()

    async def _write_group(self, subject: ReportSubject) -> ReconcileResult:
        key = GroupKey(subject.key)
        namespace, _, name = key.partition("/")
        group = self._informers.groups.get(namespace, name)
        facts = self._informers.state.groups.get(key)
        if group is None or facts is None:
            self._written.pop(subject, None)
            self._last_written.pop(key, None)
            return ReconcileDone()
        if wait_s := self._creation_delay(key):
            return RequeueAfter(wait_s)
        state = self._informers.state
        done: ReconcileResult = ReconcileDone()
        members = state.members.get(key, {}).values()
        verdict = self._pending_reasons.get(key)
        if verdict is None and not _is_complete(facts, _placed(members)):
            # No cycle considers a gang without pending pods.
            verdict = check_admission(state, facts) or held_by_gates(facts, members)
        if verdict is None and (verdict := check_queue_limit(state, facts)) is not None:
            done = RequeueAfter(LIMIT_CHECK_S)
        if verdict is None and key in state.unadmitted:
            # No cycle has considered it yet: its controller would create its pods.
            return RequeueAfter(LIMIT_CHECK_S)
        current = self._current(key, group)
        expected = self._expected_starts.get(key, "")
        desired = pod_group_status(current, facts, list(members), verdict, _now(), expected)
        if desired == current:
            return done
        reason = verdict.reason if verdict else ""
        if _stable_part(desired) == _stable_part(current):
            wait_s = self._update_delay(subject, reason)
        elif _without_counts(desired) == _without_counts(current):
            # The pods of a gang start, and end, one after the other.
            interval_s = count_interval_s(
                self._settings.count_update_interval_s,
                is_binding=not self._bindings_in_flight.idle.is_set(),
            )
            wait_s = self._remaining(self._written.get(subject, (None, ""))[0], interval_s)
        else:
            wait_s = 0.0
        if wait_s:
            return RequeueAfter(wait_s)
        await self._patch_group(group, desired)
        self._last_written[key] = (group.metadata.resource_version, desired)
        self._written[subject] = time.monotonic(), reason
        if verdict is not None and _without_forecast(desired) != _without_forecast(current):
            self._events.event(group, "Warning", UNSCHEDULABLE, verdict.message)
        return done

    async def _write_kubernetes_group(self, subject: ReportSubject) -> ReconcileResult:
        key = GroupKey(subject.key)
        namespace, name = group_name(key)
        group = self._informers.kubernetes_groups.get(namespace, name)
        state = self._informers.state
        facts = state.groups.get(key)
        if group is None or facts is None:
            self._written.pop(subject, None)
            self._disrupted.pop(key, None)
            return ReconcileDone()
        if wait_s := self._creation_delay(key):
            return RequeueAfter(wait_s)
        members = state.members.get(key, {}).values()
        verdict = self._pending_reasons.get(key) or held_by_gates(facts, members)
        desired = kubernetes_group_conditions(facts, members, verdict, self._disrupted.get(key, ""))
        changed = unwritten_conditions(group.status.conditions, desired, _now())
        if not changed:
            return ReconcileDone()
        # Numbers in messages change all the time; a change of anything else is written immediately.
        reason = str(
            [(condition.type, condition.status, condition.reason) for condition in changed]
        )
        if wait_s := self._update_delay(subject, reason):
            return RequeueAfter(wait_s)
        body = {"metadata": {"uid": group.metadata.uid}, "status": {"conditions": changed}}
        await self._client.patch(
            KUBERNETES_POD_GROUPS, name, body, namespace,
            kind=PatchKind.STRATEGIC, subresource="status",
        )  # fmt: skip
        self._written[subject] = time.monotonic(), reason
        if verdict is not None:
            self._events.event(group, "Warning", UNSCHEDULABLE, verdict.message)
        return ReconcileDone()

    def _current(self, key: GroupKey, group: PodGroup) -> PodGroupStatus:
        """Return the known status: the written one, until the watch shows a newer one."""
        version, written = self._last_written.get(key, ("", group.status))
        return written if version == group.metadata.resource_version else group.status

    async def _patch_group(self, group: PodGroup, status: PodGroupStatus) -> None:
        # Other encodings omit zeros; a merge patch must contain them to reset a count.
        body = {
            "metadata": {"uid": group.metadata.uid},
            "status": {
                "phase": status.phase,
                "conditions": msgspec.to_builtins(status.conditions, builtin_types=(datetime,)),
                "running": status.running,
                "succeeded": status.succeeded,
                "failed": status.failed,
            },
        }
        name, namespace = group.metadata.name, group.metadata.namespace
        # Another write may clear it meanwhile: this one needs what it has used itself.
        subresource = self._status_subresource
        try:
            await self._client.patch(POD_GROUPS, name, body, namespace, subresource=subresource)
        except NotFound:
            if not subresource:
                raise
            # Volcano's own CRD has no status subresource: then the object itself is patched.
            await self._client.patch(POD_GROUPS, name, body, namespace)
            self._status_subresource = ""

    async def _write_pod(self, subject: ReportSubject) -> ReconcileResult:
        key = PodKey(subject.key)
        namespace, _, name = key.partition("/")
        message = self._messages.get(key)
        pod = self._informers.pods.get(namespace, name)
        if message is None or pod is None or pod.spec.node_name:
            self._written.pop(subject, None)
            return ReconcileDone()
        conditions = [c for c in pod.status.conditions if c.type == POD_SCHEDULED]
        is_said = bool(conditions) and (conditions[0].reason, conditions[0].message) == (
            UNSCHEDULABLE,
            message.text,
        )
        is_nominated = pod.status.nominated_node_name == message.nominated_node
        if is_said and is_nominated:
            return ReconcileDone()
        if wait_s := self._creation_delay(message.group) or self._update_delay(
            subject, message.reason
        ):
            return RequeueAfter(wait_s)
        since = (
            conditions[0].last_transition_time
            if conditions and conditions[0].status == "False"
            else None
        )
        condition = Condition(
            type=POD_SCHEDULED,
            status="False",
            reason=UNSCHEDULABLE,
            message=message.text,
            last_transition_time=since or _now(),
        )
        status: dict[str, object] = {"conditions": [condition]}
        if not is_nominated:
            status["nominatedNodeName"] = message.nominated_node or None
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        await self._client.patch(
            LEAN_PODS, name, body, namespace, kind=PatchKind.STRATEGIC, subresource="status"
        )
        self._written[subject] = time.monotonic(), message.reason
        members = self._informers.state.members.get(message.group, {}) if message.group else {}
        if len(members) <= MAX_PODS_WITH_EVENTS:
            reference = _pod_reference(key, pod.metadata.uid)
            self._events.event(reference, "Warning", FAILED_SCHEDULING, message.text)
        return ReconcileDone()

    def _creation_delay(self, group: GroupKey | None) -> float:
        """Return the seconds to wait before missing members are reported."""
        since = self._forming_since.get(group) if group is not None else None
        return self._remaining(since, self._settings.gang_creation_grace_s)

    def _update_delay(self, subject: ReportSubject, reason: str) -> float:
        """Return the seconds to wait before a report with the same reason is written again."""
        written_at, last_reason = self._written.get(subject, (None, ""))
        if last_reason != reason:
            return 0.0
        reports = len(self._messages) + len(self._pending_reasons)
        interval_s = message_interval_s(self._settings.message_update_interval_s, reports)
        return self._remaining(written_at, interval_s)

    @staticmethod
    def _remaining(since: float | None, span_s: float) -> float:
        return 0.0 if since is None else max(0.0, since + span_s - time.monotonic())


def count_interval_s(least_s: float, *, is_binding: bool) -> float:
    """Return the interval between two writes of the numbers of running and ended pods, in seconds.

    While pods of any gang are bound, such writes of all gangs would be most of the requests.
    """
    return max(least_s, MAX_STATUS_DELAY_S) if is_binding else least_s


def message_interval_s(least_s: float, reports: int) -> float:
    """Return the interval between two writes of a message, in seconds.

    Args:
        least_s: the interval with few reports.
        reports: the gangs and pods with messages.
    """
    return max(least_s, reports / MESSAGE_UPDATES_PER_S)


class ScheduledEventSender:
    """Sends the Scheduled events of bound pods, one for each pod.

    If bindings stay in flight for ``MAX_EVENT_DELAY_S``, the pods of a gang share one event about
    their PodGroup. An event for each pod would take as much of the API server as the bindings do.

    Args:
        resting: set while no binding is in flight.
        pod_group: returns the PodGroup of a gang; None: it has none.
    """

    def __init__(
        self,
        events: EventRecorder,
        resting: asyncio.Event,
        clock: Callable[[], float],
        pod_group: Callable[[GroupKey], Object | None],
    ) -> None:
        self._events, self._idle, self._clock = events, resting, clock
        self._pod_group = pod_group
        self._gangs: dict[str, tuple[float, deque[PodBinding]]] = {}
        """Bindings without an event by gang (or single pod), the oldest gang first; and since when
        each gang has waited.
        """
        self._count = 0
        self._has_bindings = asyncio.Event()

    def add_binding(self, binding: PodBinding) -> None:
        """Queue the event of a bound pod; never waits."""
        if self._count >= MAX_QUEUED_EVENTS:
            log.debug("event dropped: the queue is full", extra={"pod": binding.pod})
            return
        gang = binding.group or binding.pod
        _, bindings = self._gangs.setdefault(gang, (self._clock(), deque()))
        bindings.append(binding)
        self._count += 1
        self._has_bindings.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._has_bindings.wait()
            gang, (since, bindings) = next(iter(self._gangs.items()))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, since + MAX_EVENT_DELAY_S - self._clock())):
                    await self._idle.wait()
            group = None
            if not self._idle.is_set() and len(bindings) > 1:
                group = self._pod_group(GroupKey(gang))
            if group is None:
                reported = [bindings.popleft()]
                involved: Object | ObjectReference = _pod_reference(
                    reported[0].pod, reported[0].uid
                )
            else:
                involved, reported = group, list(bindings)
                bindings.clear()
            if not bindings:
                del self._gangs[gang]
            self._count -= len(reported)
            if not self._gangs:
                self._has_bindings.clear()
            self._events.event(involved, "Normal", "Scheduled", _assigned_message(reported))
            await self._events.flush()


def _assigned_message(bindings: Sequence[PodBinding]) -> str:
    if len(bindings) == 1:
        return f"Successfully assigned {bindings[0].pod} to {bindings[0].node}"
    listed = [f"{binding.pod} to {binding.node}" for binding in bindings[:MAX_LISTED_PODS]]
    more = f" and {len(bindings) - MAX_LISTED_PODS} more" if len(bindings) > len(listed) else ""
    return f"Successfully assigned {len(bindings)} pods: {', '.join(listed)}{more}"


def pod_group_status(
    current: PodGroupStatus,
    group: PodGroupInfo,
    members: Collection[PodInfo],
    verdict: PendingReason | None,
    now: datetime,
    expected_start: str = "",
) -> PodGroupStatus:
    """Return the desired status; equal to ``current`` if nothing has to be written.

    Args:
        group: the gang.
        verdict: why it is pending; None: it is not.
        now: the time of changed conditions.
        expected_start: when it is expected to start; empty: unknown.
    """
    conditions = _conditions(current.conditions, group, members, verdict)
    if verdict is not None and expected_start:
        conditions.append(
            PodGroupCondition(START_EXPECTED, "True", "", None, FORECAST, expected_start)
        )
    return PodGroupStatus(
        phase=phase_of(current.phase, group, members, verdict),
        conditions=[_dated(condition, current.conditions, now) for condition in conditions],
        running=sum(pod.phase == "Running" for pod in members),
        succeeded=sum(pod.phase == "Succeeded" for pod in members),
        failed=sum(pod.phase == "Failed" for pod in members),
    )


def _placed(members: Collection[PodInfo]) -> list[PodInfo]:
    return [pod for pod in members if pod.node is not None or pod.is_finished]


def _is_complete(group: PodGroupInfo, placed: Collection[PodInfo]) -> bool:
    return len(placed) >= max(1, group.min_member)


def phase_of(
    current: str, group: PodGroupInfo, members: Collection[PodInfo], verdict: PendingReason | None
) -> str:
    placed = _placed(members)
    is_complete = _is_complete(group, placed)
    if any(pod.phase == "Running" for pod in placed) and not (is_complete and verdict is None):
        return UNKNOWN
    if is_complete:
        # A member that is pending, or is being created, keeps the group from being Completed.
        return COMPLETED if all(pod.is_finished for pod in members) else RUNNING
    if verdict is not None and verdict.reason == messages.QUEUE_LIMIT:
        # The limit is checked again and again: a gang that was admitted earlier may be over it now.
        return PENDING
    if verdict is not None and verdict.reason in _NOT_ADMITTED_REASONS:
        return current if current == INQUEUE else PENDING
    return INQUEUE


def _conditions(
    current: list[PodGroupCondition],
    group: PodGroupInfo,
    members: Collection[PodInfo],
    verdict: PendingReason | None,
) -> list[PodGroupCondition]:
    if verdict is not None:
        desired = [
            PodGroupCondition(UNSCHEDULABLE, "True", "", None, verdict.reason, verdict.message),
            PodGroupCondition(SCHEDULED, "False", "", None, verdict.reason, "The gang is pending."),
        ]
    elif _is_placed(group, members):
        message = "All pods that must start together have nodes."
        desired = [
            PodGroupCondition(UNSCHEDULABLE, "False", "", None, SCHEDULED, message),
            PodGroupCondition(SCHEDULED, "True", "", None, SCHEDULED, message),
        ]
    else:
        # It is not pending and not placed: its pods are still to be created, or were deleted.
        # Earlier conditions about its placement no longer hold.
        message = "The pods that must start together do not exist."
        desired = [
            PodGroupCondition(condition.type, "False", "", None, messages.NOT_ENOUGH_PODS, message)
            for condition in current
            if condition.type != START_EXPECTED
        ]
    return desired


def _is_placed(group: PodGroupInfo, members: Collection[PodInfo]) -> bool:
    placed = sum(pod.node is not None or pod.is_finished for pod in members)
    return placed >= max(1, group.min_member)


def _dated(
    desired: PodGroupCondition, current: list[PodGroupCondition], now: datetime
) -> PodGroupCondition:
    """Keep the transition time of a condition unless its status has changed."""
    for condition in current:
        if condition.type == desired.type and condition.status == desired.status:
            return msgspec.structs.replace(
                desired,
                last_transition_time=condition.last_transition_time,
                transition_id=condition.transition_id,
            )
    stamp = format(int(now.timestamp() * 1_000_000), "x")
    return msgspec.structs.replace(desired, last_transition_time=now, transition_id=stamp)


def _changed_keys(old: Mapping[K, object], new: Mapping[K, object]) -> set[K]:
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def _without_forecast(status: PodGroupStatus) -> PodGroupStatus:
    conditions = [condition for condition in status.conditions if condition.type != START_EXPECTED]
    return msgspec.structs.replace(status, conditions=conditions)


def _without_counts(status: PodGroupStatus) -> PodGroupStatus:
    return msgspec.structs.replace(status, running=0, succeeded=0, failed=0)


def _stable_part(status: PodGroupStatus) -> tuple[object, ...]:
    """Return a status without the numbers in messages, which change all the time."""
    reasons = [(c.type, c.status, c.reason) for c in status.conditions]
    return (status.phase, status.running, status.succeeded, status.failed, *reasons)


def _pod_reference(key: PodKey, uid: str) -> ObjectReference:
    namespace, _, name = key.partition("/")
    return ObjectReference(kind="Pod", api_version="v1", namespace=namespace, name=name, uid=uid)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
