"""The reconcile loop of one job: observe, plan, execute, store the status, emit events.

One pass ends with at most one status write, after all other writes, and none if nothing changed.
The write carries the version of the job that the plan is based on: if the job has changed
meanwhile, the pass fails with a conflict and the next one observes the change. Invariant: events
and counters follow only after the status is stored, so they never report a transition that did not
happen.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gangline.api.kubeflow import JobStatus
from gangline.kube.client import Client, PatchKind
from gangline.kube.controller import After, Done, Result, TerminalError
from gangline.kube.errors import NotFound
from gangline.kube.events import EventRecorder
from gangline.operator import conditions, metrics
from gangline.operator.cache import Cache, JobKey, Sight, job_resource
from gangline.operator.decide import decide
from gangline.operator.decision import Decision, EngineSettings, Event
from gangline.operator.hands import Hands, Outcome
from gangline.operator.job import Manifest, StartsLater, offers
from gangline.operator.journal import note
from gangline.operator.recent import PATIENCE_S
from gangline.operator.stored import StoredJob
from gangline.operator.story import events, is_minor, is_start, stalled
from gangline.operator.urgency import look_again, minor_waits, start_waits

MOST_UNTOLD = 1000
"""Number of events that wait for a less busy moment; the oldest are dropped."""

FOREIGN_DEFINITION = (
    "the cluster's CRD of this kind drops status.restarts, so that restarts cannot be "
    "counted: install Gangline's (kubectl apply -f deploy/crds)"
)

STALL_RETRY_S = (1.0, 300.0)
"""The shortest and the longest delay in seconds before a refused creation is retried."""

_STATUS = msgspec.json.Decoder(JobStatus)


class Reconciler:
    """Reconciles one job at a time."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        executor: Hands,
        events: EventRecorder,
        settings: EngineSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._hands = executor
        self._events = events
        self._settings = settings
        self._clock = clock
        self._stored_at: dict[JobKey, float] = {}
        self._minor_since: dict[JobKey, float] = {}
        self._untold: deque[tuple[StoredJob, Event]] = deque(maxlen=MOST_UNTOLD)

    async def reconcile(self, key: JobKey) -> Result:
        """Run one pass over a job.

        Raises:
            ApiError: a write failed; the next pass continues from the stored state.
        """
        observation = self._cache.observe(key)
        if observation is None:
            self._stored_at.pop(key, None)
            self._minor_since.pop(key, None)
            return Done()
        now = self._clock()
        plan = decide(observation.observed, now, self._settings)
        result = await self._hands.carry_out(observation, plan)
        status = self._status(observation, plan, result, now)
        fields = plan.fields if plan.fields is not None else observation.own_fields
        changed = status != observation.observed.status or fields != observation.own_fields
        if not changed:
            self._minor_since.pop(key, None)
        wait = self._wait_to_store(key, observation.observed.status, status) if changed else None
        if changed and not wait:
            if not await self._store(key, observation, status, fields):
                return Done()
            self._tell(observation, events(observation.observed.status, status))
        self._tell(observation, result.events())
        return _result(
            _requeue_after(plan, result),
            self._look_again(observation, plan, result),
            wait,
            _stall_wait(status, now) if result.problems else None,
            # A watch never shows an object that was deleted before it was observed: requeue.
            PATIENCE_S + 1 if self._cache.owed(observation.stored.metadata.uid) else None,
        )

    def _status(
        self, observation: Sight, plan: Decision, result: Outcome, now: datetime
    ) -> JobStatus:
        if not result.problems:
            return plan.status
        stamp = now.replace(microsecond=0)
        return stalled(observation.observed.job, plan.status, result.problem(), stamp)

    def _wait_to_store(self, key: JobKey, before: JobStatus, after: JobStatus) -> float | None:
        """Return the delay of a minor status change; None: store it now.

        More changes may follow, the last write may be recent, or other writes may be urgent.
        """
        now = time.monotonic()
        minor = is_minor(before, after)
        if not minor and not is_start(before, after):
            return None
        waited_s = now - self._minor_since.setdefault(key, now)
        if not minor:
            return start_waits(waited_s)
        since_stored_s = now - self._stored_at.get(key, -math.inf)
        return minor_waits(waited_s, since_stored_s, crowded=self._hands.crowded)

    def _look_again(self, observation: Sight, plan: Decision, result: Outcome) -> float | None:
        """Return the time until created objects are checked; zero if others can be created only
        then.
        """
        if not plan.creations or result.problems:
            return None
        if offers(observation.observed.job.rules, StartsLater):
            return 0.0
        return look_again(crowded=self._hands.crowded)

    async def _store(
        self, key: JobKey, observation: Sight, status: JobStatus, fields: Manifest
    ) -> bool:
        """Write the status; return False if the job was deleted.

        Raises:
            TerminalError: the cluster's CRD of the kind drops fields that are required.
        """
        stored = observation.stored
        operations = [
            {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": stored.metadata.resource_version,
            },
            {
                "op": "add",
                "path": "/status",
                "value": {**fields, **msgspec.to_builtins(status)} if fields else status,
            },
        ]
        metrics.WRITES.labels("Job", "status").inc()
        try:
            after: StoredJob = await self._client.patch(
                job_resource(observation.observed.job.kind),
                key.name,
                operations,
                key.namespace,
                kind=PatchKind.JSON,
                subresource="status",
            )
        except NotFound:
            return False
        self._cache.recent_status.written(stored, after)
        self._stored_at[key] = time.monotonic()
        self._minor_since.pop(key, None)
        # With a CRD that lacks this field the API server drops it silently: no restart would count.
        if _STATUS.decode(after.status).restarts.total != status.restarts.total:
            raise TerminalError(FOREIGN_DEFINITION)
        metrics.count_status(observation.observed, status)
        note(observation.observed.status, status)
        return True

    def _tell(self, observation: Sight, events: list[Event]) -> None:
        """Emit events, unless pods of other jobs wait to be created."""
        self._untold += ((observation.stored, event) for event in events)
        while self._untold and not self._hands.crowded:
            involved, event = self._untold.popleft()
            kind = "Warning" if event.warning else "Normal"
            self._events.event(involved, kind, event.reason, event.message)


def _requeue_after(plan: Decision, result: Outcome) -> float | None:
    """Return the planned delay, but no immediate retry of a refused creation."""
    if plan.requeue_after is None or (result.problems and not plan.requeue_after):
        return None
    return plan.requeue_after.total_seconds()


def _stall_wait(status: JobStatus, now: datetime) -> float:
    """Wait as long as the job has been stalled already: exponential backoff with a bound."""
    shortest, longest = STALL_RETRY_S
    stalled = conditions.find(status.conditions, conditions.STALLED)
    since = stalled.last_transition_time if stalled else None
    waited = (now - since).total_seconds() if since else 0.0
    return min(max(waited, shortest), longest)


def _result(*waits: float | None) -> Result:
    known = [wait for wait in waits if wait is not None]
    return After(min(known)) if known else Done()
