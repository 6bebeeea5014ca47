"""Counts restarts, compares them with backoffLimit, and delays replacements.

A restart is a container that the kubelet restarted in place, or a failed pod that was replaced.
Each counts exactly once, and counts must survive both pods and the operator. So the job's status
stores the sum, and for each existing pod its share in it. Invariant: a failed pod is deleted only
after the status that counts it was stored.

Upstream loses the counts of recreated pods and so retries ExitCode roles for ever. It also fails a
job *at* its limit, so a limit of 1 allows no restart at all. Here, as the description of the field
promises, the limit is the number of allowed restarts.

The first replacement is immediate. Later ones back off like the kubelet's restarts of a crashing
container: 10 s, doubled each time up to 5 minutes, reset after 10 minutes without a failure.
Failures within ten seconds of the first are one burst. Ranks fail together: when one fails, its
peers follow with connection errors, and all of them must be replaced without delay.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from gangline.api.jobs.kubeflow import RestartRecord
from gangline.operator.model.replicas import ObservedPod

CRASH_LOOP_BACKOFF = "CrashLoopBackOff"


def count_in_place_restarts(pod: ObservedPod) -> int:
    """Count how often the kubelet restarted this pod's containers, or is about to.

    A container in CrashLoopBackOff has failed once more than it was restarted. That restart is
    certain and is counted now, or the limit would be noticed minutes late.
    """
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    waiting = (status.state.waiting for status in statuses)
    due = sum(1 for state in waiting if state and state.reason == CRASH_LOOP_BACKOFF)
    return sum(status.restart_count for status in statuses) + due


def count_restarts(
    record: RestartRecord, pods: Iterable[ObservedPod], replaced: frozenset[str]
) -> RestartRecord:
    """Update the record from the observed pods.

    Args:
        record: the stored record.
        pods: the existing pods.
        replaced: uids of failed pods that are replaced.
    """
    total, seen = record.total, {}
    for pod in sorted(pods, key=lambda pod: pod.uid):
        known = record.pods.get(pod.uid, 0)
        now = known if pod.is_terminating else count_in_place_restarts(pod) + (pod.uid in replaced)
        if now := max(now, known):
            seen[pod.uid] = now
        total += now - known
    if (total, seen) == (record.total, record.pods):
        return record
    return msgspec.structs.replace(record, total=total, pods=seen)


def is_limit_exceeded(record: RestartRecord, limit: int | None) -> bool:
    return limit is not None and record.total > limit


BURST_WINDOW = timedelta(seconds=10)
BASE_DELAY = timedelta(seconds=10)
MAX_DELAY = timedelta(minutes=5)
RESET_AFTER = timedelta(minutes=10)

_MAX_DOUBLINGS = 5


def record_failure(record: RestartRecord, now: datetime) -> RestartRecord:
    since = now - record.burst_start if record.burst_start else None
    if since is None or since > RESET_AFTER + replacement_delay(record) or since < timedelta(0):
        # A burst in the future means that the clock was set back: reset.
        return msgspec.structs.replace(record, bursts=1, burst_start=now)
    if since <= BURST_WINDOW:
        return record
    return msgspec.structs.replace(record, bursts=record.bursts + 1, burst_start=now)


def replacement_delay(record: RestartRecord) -> timedelta:
    """Return the delay between the start of the latest burst and replacements."""
    if record.bursts <= 1:
        return timedelta(0)
    return min(BASE_DELAY * (1 << min(record.bursts - 2, _MAX_DOUBLINGS)), MAX_DELAY)


def time_to_replacement(record: RestartRecord, now: datetime) -> timedelta:
    """Return the time until replicas may be created; zero or less if they may be now.

    It is never longer than the delay itself, even if the clock was set back.
    """
    if record.burst_start is None:
        return timedelta(0)
    return min(record.burst_start + replacement_delay(record) - now, replacement_delay(record))
