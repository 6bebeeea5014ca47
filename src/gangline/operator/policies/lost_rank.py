"""Detects jobs that can never end: a rank was restarted after another rank had ended.

Ranks of a collective start together. A rank that has ended with code 0 never comes back, so a rank
that is restarted afterwards waits for it until a timeout of the framework, which may be for ever.
By default the job only reports this, as the condition ``Stalled``. The annotation
``gangline.dev/stalled: restart`` restarts all replicas instead, and ``fail`` ends the job.

Jobs whose failed ranks restart all others (``gangline.dev/restart: gang``) cannot get there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gangline.api.jobs.kubeflow import STALLED_ANNOTATION
from gangline.operator.model.job import MeetsInCollectives, NormalizedJob, implements
from gangline.operator.model.replicas import ObservedPod, ReplicaGang
from gangline.operator.policies.backoff import count_in_place_restarts

GRACE = timedelta(seconds=60)
"""How long a restarted rank may run before it counts as waiting: it may still end by itself."""
RESTART, FAIL = "restart", "fail"


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that has ended, and a restarted rank that waits for it."""

    waiting: str
    """The pod of the restarted rank."""
    started: datetime
    ended: str
    """The pod of the rank that has ended."""
    ended_at: datetime

    def is_certain(self, now: datetime) -> bool:
        return now >= self.started + GRACE

    def message(self) -> str:
        """Describe the state; the text stays equal while the state lasts."""
        when = self.ended_at.astimezone(UTC)
        return (
            f"{self.waiting} waits for {self.ended}, which ended at {when:%Y-%m-%dT%H:%M:%SZ}, "
            f"before {self.waiting} was restarted: ranks that train together start together."
        )


def find_lost_rank(job: NormalizedJob, gang: ReplicaGang) -> LostRank | None:
    """Return the first rank that ended, and the rank that waits longest for it; None if none does.

    Only clocks of one machine are compared where it matters: a rank counts as restarted if its
    containers were, or if its pod was created after the end of the other.
    """
    rules = job.rules
    if not implements(rules, MeetsInCollectives) or not rules.needs_all_ranks(job):
        return None
    ends = [(at, pod.name) for pod in gang.pods if pod.succeeded and (at := _finished_at(pod))]
    if not ends:
        return None
    ended_at, ended = min(ends)
    waiting = min(_restarted_after(gang, ended_at), default=None)
    return None if waiting is None else LostRank(waiting[1], waiting[0], ended, ended_at)


def time_to_certainty(lost: LostRank | None, now: datetime) -> timedelta | None:
    """Return the time until the grace period of a lost rank is over; None if there is none left."""
    return None if lost is None or lost.is_certain(now) else lost.started + GRACE - now


def stalled_policy(job: NormalizedJob) -> str:
    """Return ``restart`` or ``fail``; empty if the job only reports."""
    return job.meta.annotations.get(STALLED_ANNOTATION, "")


def _restarted_after(gang: ReplicaGang, ended: datetime) -> Iterator[tuple[datetime, str]]:
    for pod in gang.pods:
        started = _started_at(pod)
        if not pod.is_active or started is None or started <= ended:
            continue
        created = pod.metadata.creation_timestamp
        if count_in_place_restarts(pod) or (created is not None and created > ended):
            yield started, pod.name


def _started_at(pod: ObservedPod) -> datetime | None:
    """Return the start of the container that started last; None if none runs."""
    running = (status.state.running for status in pod.status.container_statuses)
    return max((state.started_at for state in running if state and state.started_at), default=None)


def _finished_at(pod: ObservedPod) -> datetime | None:
    ends = (status.state.terminated for status in pod.status.container_statuses)
    return max((end.finished_at for end in ends if end and end.finished_at), default=None)
