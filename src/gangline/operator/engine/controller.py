"""The reconcile loop of one job: observe, plan, execute, store the status, emit events.

One pass ends with at most one status write, after all other writes, and none if nothing changed.
The write carries the version of the job that the plan is based on: if the job has changed
meanwhile, the pass fails with a conflict and the next one observes the change. Invariant: events,
counters and log lines follow only after the status is stored, so they never report a transition
that did not happen.

The log has one line for each condition that becomes True, with its reason only. Messages may quote
the output of a user's program, which must not appear in the operator's log. A failed job is not a
warning: the operator works.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.conditions import (
    TRUE,
    find_condition,
    is_condition_true,
    remove_condition,
)
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.controller.controller import (
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import ApiError, NotFound
from gangline.operator import metrics
from gangline.operator.engine.apply import (
    ExecutionResult,
    PlanExecutor,
    minor_status_delay,
    requeue_delay,
    running_status_delay,
)
from gangline.operator.engine.mutation_cache import WATCH_TIMEOUT_S
from gangline.operator.engine.observe import ClusterCache, JobKey, JobObservation, job_resource
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.engine.status import (
    decode_status,
    encode_status,
    is_first_start,
    is_minor_change,
    kind_fields,
    mark_stalled,
    transition_events,
)
from gangline.operator.model import conditions
from gangline.operator.model.job import (
    JobKindInfo,
    Manifest,
    OrdersStartup,
    RawJob,
    implements,
)
from gangline.operator.model.plan import (
    EngineSettings,
    PlannedEvent,
    ReconcilePlan,
    TargetKind,
)
from gangline.operator.webhook.progress import AuthorityPublisher

log = logging.getLogger(__name__)


def log_transitions(before: JobStatus, after: JobStatus) -> None:
    for condition in after.conditions:
        began = condition.status == TRUE
        if began and not is_condition_true(before.conditions, condition.type):
            fields = {"reason": condition.reason, "restarts": after.restarts.total}
            log.info("job is %s", condition.type, extra=fields)


MAX_PENDING_EVENTS = 1000
"""Number of events that wait for a less busy moment; the oldest are dropped."""

INCOMPLETE_CRD = (
    "the cluster's CRD of this kind drops status.restarts, so that restarts cannot be "
    "counted: install Gangline's (kubectl apply -f deploy/crds)"
)

RECONCILE_FAILED = "the operator cannot process the job, and tries again"
"""Begin of the message about an error of a pass; the operator's log has its traceback."""

STALLED_RETRY_S = (1.0, 300.0)
"""The shortest and the longest delay in seconds before a refused creation is retried."""


class JobReconciler:
    def __init__(
        self,
        client: ApiClient,
        cache: ClusterCache,
        executor: PlanExecutor,
        events: EventRecorder,
        settings: EngineSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        authorities: AuthorityPublisher | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._executor = executor
        self._events = events
        self._settings = settings
        self._clock = clock
        self._authorities = authorities
        self._stored_at: dict[JobKey, float] = {}
        self._minor_since: dict[JobKey, float] = {}
        self._incomplete_kinds: set[str] = set()
        """Kinds whose CRD drops fields of the status."""
        self._pending_events: deque[tuple[RawJob, PlannedEvent]] = deque(maxlen=MAX_PENDING_EVENTS)

    async def reconcile(self, key: JobKey) -> ReconcileResult:
        observation = self._cache.observe(key)
        if observation is None:
            self._stored_at.pop(key, None)
            self._minor_since.pop(key, None)
            return ReconcileDone()
        # 1. Plan: a function of the observation. If this process ends from here on, the next pass
        #    observes again and plans the same.
        now = self._clock()
        plan = plan_reconcile(observation.job_state, now, self._settings)
        if self._authorities is not None and any(
            creation.target is TargetKind.POD for creation in plan.creations
        ):
            await self._authorities.publish(key.namespace)
        # 2. Write objects. Each write can be repeated, so that nothing is lost between two of them.
        result = await self._executor.execute(observation, plan)
        job, status = observation.job_state.job, plan.status
        status, stamp = _without_error(status), now.replace(microsecond=0)
        is_incomplete = job.kind.identity in self._incomplete_kinds
        if result.problems:
            status = mark_stalled(job, status, result.problem_message(), stamp)
        elif is_incomplete and not conditions.is_finished(status.conditions):
            status = mark_stalled(job, status, INCOMPLETE_CRD, stamp)
        fields = plan.kind_status if plan.kind_status is not None else observation.kind_status
        changed = status != observation.job_state.status or fields != observation.kind_status
        if not changed:
            self._minor_since.pop(key, None)
        # 3. Store the status, after all other writes. A minor change may wait: it can be repeated.
        wait = self._store_delay(key, observation.job_state.status, status) if changed else None
        if changed and not wait:
            if not await self._store(key, observation, status, fields):
                return ReconcileDone()
            # 4. Report transitions, only now: they are certain. They are lost if the process ends.
            self._emit_events(observation, transition_events(observation.job_state.status, status))
        self._emit_events(observation, result.events())
        # 5. Requeue for the first moment at which something can change without an event.
        # A watch never shows an object that was deleted before it was observed: requeue.
        unobserved = self._cache.has_unobserved_writes(observation.stored.metadata.uid)
        delays = (
            _requeue_after(plan, result),
            self._requeue_delay(observation, plan, result),
            wait,
            _stalled_delay(status, now) if result.problems else None,
            WATCH_TIMEOUT_S + 1 if unobserved else None,
            0.0 if job.kind.identity in self._incomplete_kinds and not is_incomplete else None,
        )
        delay = min((delay for delay in delays if delay is not None), default=None)
        return ReconcileDone() if delay is None else RequeueAfter(delay)

    async def report_error(self, key: JobKey, error: Exception) -> None:
        """Report an error of a pass as condition and event; the next pass that succeeds ends it.

        A status that cannot be decoded is not replaced: only the event reports the error then.
        """
        kind, cached = self._cache.frameworks[key.kind].kind, self._cache.find(key)
        if cached is None:
            return
        stored = self._cache.written_statuses.latest(cached)
        text = str(error) if isinstance(error, ApiError) else f"{type(error).__name__}: {error}"
        message = f"{RECONCILE_FAILED}: {text}"
        reason, now = f"{kind.kind}{conditions.STALLED}", self._clock().replace(microsecond=0)
        try:
            before = self._cache.status_of(key.kind, stored)
            fields = kind_fields(kind, stored.status)
        except msgspec.DecodeError:
            self._events.event(stored, "Warning", reason, message)
            return
        current = conditions.set_condition_true(
            before.conditions, conditions.STALLED, reason, message, now
        )
        status = replace(before, conditions=current)
        if status == before:
            return
        if await self._patch_status(kind, stored, status, fields):
            self._events.event(stored, "Warning", reason, message)

    def _store_delay(self, key: JobKey, before: JobStatus, after: JobStatus) -> float | None:
        """Return the delay of a minor status change; None: store it now.

        More changes may follow, the last write may be recent, or other writes may be urgent.
        """
        now = time.monotonic()
        minor = is_minor_change(before, after)
        if not minor and not is_first_start(before, after):
            return None
        waited_s = now - self._minor_since.setdefault(key, now)
        if not minor:
            return running_status_delay(waited_s)
        since_stored_s = now - self._stored_at.get(key, -math.inf)
        return minor_status_delay(
            waited_s, since_stored_s, is_saturated=self._executor.is_saturated
        )

    def _requeue_delay(
        self, observation: JobObservation, plan: ReconcilePlan, result: ExecutionResult
    ) -> float | None:
        """Return the time until created objects are checked; zero if more depend on them."""
        if not plan.creations or result.problems:
            return None
        if implements(observation.job_state.job.rules, OrdersStartup):
            return 0.0
        return requeue_delay(is_saturated=self._executor.is_saturated)

    async def _store(
        self, key: JobKey, observation: JobObservation, status: JobStatus, fields: Manifest
    ) -> bool:
        """Write the status; return False if the job was deleted."""
        # A patch in this pass has changed the stored job.
        stored = self._cache.written_statuses.latest(observation.stored)
        kind = observation.job_state.job.kind
        after = await self._patch_status(kind, stored, status, fields)
        if after is None:
            return False
        self._stored_at[key] = time.monotonic()
        self._minor_since.pop(key, None)
        # With a CRD that lacks this field the API server drops it silently: no restart would count.
        kept = decode_status(kind, after.status)
        if kept.last_valid_spec != status.last_valid_spec:
            self._cache.kinds_without_record.add(kind.identity)
        counts, counted = kept.restarts, status.restarts
        if (counts.total, counts.ranks.keys()) == (counted.total, counted.ranks.keys()):
            self._incomplete_kinds.discard(kind.identity)
        elif kind.identity not in self._incomplete_kinds:
            log.warning(INCOMPLETE_CRD)
            self._incomplete_kinds.add(kind.identity)
        metrics.count_transitions(observation.job_state, status)
        log_transitions(observation.job_state.status, status)
        return True

    async def _patch_status(
        self, kind: JobKindInfo, stored: RawJob, status: JobStatus, fields: Manifest
    ) -> RawJob | None:
        """Write a status that is based on ``stored``; return None if the job was deleted."""
        version = stored.metadata.resource_version
        operations = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": encode_status(kind, status, fields)},
        ]
        metrics.WRITES.labels("Job", "status").inc()
        try:
            after: RawJob = await self._client.patch(
                job_resource(kind),
                stored.metadata.name,
                operations,
                stored.metadata.namespace,
                kind=PatchKind.JSON,
                subresource="status",
            )
        except NotFound:
            return None
        self._cache.written_statuses.record_write(stored, after)
        return after

    def _emit_events(self, observation: JobObservation, events: list[PlannedEvent]) -> None:
        """Emit events, unless pods of other jobs wait to be created."""
        self._pending_events += ((observation.stored, event) for event in events)
        while self._pending_events and not self._executor.is_saturated:
            involved, event = self._pending_events.popleft()
            kind = "Warning" if event.warning else "Normal"
            self._events.event(involved, kind, event.reason, event.message)


def _without_error(status: JobStatus) -> JobStatus:
    """Remove the report of an error that an earlier pass ended with."""
    stalled = find_condition(status.conditions, conditions.STALLED)
    if stalled is None or not stalled.message.startswith(RECONCILE_FAILED):
        return status
    remaining = remove_condition(status.conditions, conditions.STALLED)
    return replace(status, conditions=remaining)


def _requeue_after(plan: ReconcilePlan, result: ExecutionResult) -> float | None:
    """Return the planned delay, but no immediate retry of a refused creation."""
    if plan.requeue_after is None or (result.problems and not plan.requeue_after):
        return None
    return plan.requeue_after.total_seconds()


def _stalled_delay(status: JobStatus, now: datetime) -> float:
    """Wait as long as the job has been stalled already: exponential backoff with a bound."""
    shortest, longest = STALLED_RETRY_S
    stalled = find_condition(status.conditions, conditions.STALLED)
    since = stalled.last_transition_time if stalled else None
    waited = (now - since).total_seconds() if since else 0.0
    return min(max(waited, shortest), longest)
