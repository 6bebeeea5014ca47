"""Around the engine: look at a job, decide, carry out, store the status, tell what happened.

One pass ends with at most one status write, after all other writes, and none if nothing changed.
The write names the version of the job that was decided upon: if the job has changed meanwhile, the
pass fails with a conflict and the next one sees the change. Events and counters follow only once
the status is stored, so that nothing is told that did not come to be.
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
"""Events that are kept for quieter times; of more the oldest are dropped."""

FOREIGN_DEFINITION = (
    "the cluster's definition of this kind drops status.restarts, so that restarts cannot be "
    "counted: install Gangline's (kubectl apply -f deploy/crds)"
)

STALL_RETRY_S = (1.0, 300.0)
"""The shortest and the longest wait before something that was refused is tried again."""

_STATUS = msgspec.json.Decoder(JobStatus)


class Reconciler:
    """Brings one job at a time to where its specification wants it."""

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
        """Look at one job and do what is to be done.

        Raises:
            ApiError: a write failed; another pass will find out how far this one came.
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
            # A watch may never show what was gone before it was seen: look again by then.
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
        """Put off minor news: more may come, some was stored just now, other work is urgent."""
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
        """When to look at what was made: at once where more could not be made without it."""
        if not decision.creations or outcome.problems:
            return None
        if offers(sight.observed.job.rules, StartsLater):
            return 0.0
        return urgency.look_again(crowded=self._hands.crowded)

    async def _store(self, key: JobKey, sight: Sight, status: JobStatus, fields: Manifest) -> bool:
        """Write the status; False if the job is gone.

        Raises:
            TerminalError: the cluster's definition of the kind does not keep what has to be kept.
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
        """Tell events, but not while other jobs' pods are waiting to be made."""
        self._untold += ((sight.stored, event) for event in told)
        while self._untold and not self._hands.crowded:
            involved, event = self._untold.popleft()
            kind = "Warning" if event.warning else "Normal"
            self._events.event(involved, kind, event.reason, event.message)


def _requeue_after(decision: Decision, outcome: Outcome) -> float | None:
    """When to look again; not at once for more of what has just been refused."""
    if decision.requeue_after is None or (outcome.problems and not decision.requeue_after):
        return None
    return decision.requeue_after.total_seconds()


def _stall_wait(status: JobStatus, now: datetime) -> float:
    """Wait as long again as the job has been stalled already: ever longer, up to a bound."""
    shortest, longest = STALL_RETRY_S
    stalled = conditions.find(status.conditions, conditions.STALLED)
    since = stalled.last_transition_time if stalled else None
    waited = (now - since).total_seconds() if since else 0.0
    return min(max(waited, shortest), longest)


def _result(*waits: float | None) -> Result:
    known = [wait for wait in waits if wait is not None]
    return After(min(known)) if known else Done()
