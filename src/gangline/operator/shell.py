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
from gangline.operator import conditions, journal, metrics, story, urgency
from gangline.operator.cache import Cache, JobKey, Sight, job_resource
from gangline.operator.decide import decide
from gangline.operator.decision import Decision, EngineSettings, Event
from gangline.operator.hands import Hands, Outcome
from gangline.operator.job import Manifest, StartsLater, offers
from gangline.operator.recent import PATIENCE_S
from gangline.operator.stored import StoredJob

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
        hands: Hands,
        events: EventRecorder,
        settings: EngineSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._cache = cache
        self._hands = hands
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
        sight = self._cache.observe(key)
        if sight is None:
            self._stored_at.pop(key, None)
            self._minor_since.pop(key, None)
            return Done()
        now = self._clock()
        decision = decide(sight.observed, now, self._settings)
        outcome = await self._hands.carry_out(sight, decision)
        status = self._status(sight, decision, outcome, now)
        fields = decision.fields if decision.fields is not None else sight.own_fields
        changed = status != sight.observed.status or fields != sight.own_fields
        if not changed:
            self._minor_since.pop(key, None)
        wait = self._wait_to_store(key, sight.observed.status, status) if changed else None
        if changed and not wait:
            if not await self._store(key, sight, status, fields):
                return Done()
            self._tell(sight, story.events(sight.observed.status, status))
        self._tell(sight, outcome.events())
        return _result(
            _requeue_after(decision, outcome),
            self._look_again(sight, decision, outcome),
            wait,
            _stall_wait(status, now) if outcome.problems else None,
            # A watch never shows an object that was deleted before it was observed: requeue.
            PATIENCE_S + 1 if self._cache.owed(sight.stored.metadata.uid) else None,
        )

    def _status(
        self, sight: Sight, decision: Decision, outcome: Outcome, now: datetime
    ) -> JobStatus:
        if not outcome.problems:
            return decision.status
        stamp = now.replace(microsecond=0)
        return story.stalled(sight.observed.job, decision.status, outcome.problem(), stamp)

    def _wait_to_store(self, key: JobKey, before: JobStatus, after: JobStatus) -> float | None:
        """Return the delay of a minor status change; None: store it now.

        More changes may follow, the last write may be recent, or other writes may be urgent.
        """
        now = time.monotonic()
        minor = story.is_minor(before, after)
        if not minor and not story.is_start(before, after):
            return None
        waited_s = now - self._minor_since.setdefault(key, now)
        if not minor:
            return urgency.start_waits(waited_s)
        since_stored_s = now - self._stored_at.get(key, -math.inf)
        return urgency.minor_waits(waited_s, since_stored_s, crowded=self._hands.crowded)

    def _look_again(self, sight: Sight, decision: Decision, outcome: Outcome) -> float | None:
        """Return the time until created objects are checked; zero if others can be created only
        then.
        """
        if not decision.creations or outcome.problems:
            return None
        if offers(sight.observed.job.rules, StartsLater):
            return 0.0
        return urgency.look_again(crowded=self._hands.crowded)

    async def _store(self, key: JobKey, sight: Sight, status: JobStatus, fields: Manifest) -> bool:
        """Write the status; return False if the job was deleted.

        Raises:
            TerminalError: the cluster's CRD of the kind drops fields that are required.
        """
        stored = sight.stored
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
                job_resource(sight.observed.job.kind),
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
        if _STATUS.decode(after.status).restarts.total != status.restarts.total:
            raise TerminalError(FOREIGN_DEFINITION)
        metrics.count_status(sight.observed, status)
        journal.note(sight.observed.status, status)
        return True

    def _tell(self, sight: Sight, told: list[Event]) -> None:
        """Emit events, unless pods of other jobs wait to be created."""
        self._untold += ((sight.stored, event) for event in told)
        while self._untold and not self._hands.crowded:
            involved, event = self._untold.popleft()
            kind = "Warning" if event.warning else "Normal"
            self._events.event(involved, kind, event.reason, event.message)


def _requeue_after(decision: Decision, outcome: Outcome) -> float | None:
    """Return the planned delay, but no immediate retry of a refused creation."""
    if decision.requeue_after is None or (outcome.problems and not decision.requeue_after):
        return None
    return decision.requeue_after.total_seconds()


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
