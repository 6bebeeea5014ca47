"""Counts restarts, compares them with backoffLimit, and delays replacements.

A restart is a container that the kubelet restarted in place, or a failed pod that was replaced.
Each counts exactly once, and counts must survive both pods and the operator. So the job's status
stores the sum, and for each existing pod its share in it. Invariant: a failed pod is deleted only
after the status that counts it was stored.

Upstream loses the counts of recreated pods and so retries ExitCode roles for ever. It also fails a
job *at* its limit, so a limit of 1 allows no restart at all. Here, as the description of the field
promises, the limit is the number of allowed restarts.

Replacements back off like the kubelet's restarts of a crashing container: the first is immediate,
the next ones wait 10 s, doubled each time up to 5 minutes, and 10 minutes without a failure reset
the delay. Each rank has its own delay: ranks fail together, because peers of a failed rank get
connection errors, and one failure of each must not delay any of them. Restarts of all replicas
together have one delay for the job.

A pod that its node refused never ran. It is replaced under every restart policy and counts as no
failure. Its next pod waits from the first refusal on: another one would be refused again within
milliseconds, as long as the scheduler does not observe why.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from gangline.api.jobs.kubeflow import RankBackoff, RestartRecord
from gangline.operator.model.job import ReplicaRole
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
    record: RestartRecord,
    pods: Iterable[ObservedPod],
    replaced: frozenset[str],
    limited: Mapping[str, str],
) -> RestartRecord:
    """Update the record from the observed pods.

    ``replaced`` are uids of failed pods; ``limited`` are roles with a limit of their own, by pod
    uid.
    """
    total, seen, roles = record.total, {}, dict(record.roles)
    for pod in sorted(pods, key=lambda pod: pod.uid):
        counted = record.pods.get(pod.uid, 0)
        now = (
            counted if pod.is_terminating else count_in_place_restarts(pod) + (pod.uid in replaced)
        )
        if now := max(now, counted):
            seen[pod.uid] = now
        total += now - counted
        if now > counted and (role := limited.get(pod.uid)):
            roles[role] = roles.get(role, 0) + now - counted
    if (total, seen) == (record.total, record.pods):
        return record
    return structs.replace(record, total=total, pods=seen, roles=roles)


class ExceededLimit(NamedTuple):
    role: str
    """The role whose limit it is; empty if it is the job's."""
    failures: int
    limit: int


def find_exceeded_limit(
    record: RestartRecord, limit: int | None, roles: Iterable[ReplicaRole]
) -> ExceededLimit | None:
    """Return the first limit that is exceeded: those of roles, then the job's."""
    for role in roles:
        count = record.roles.get(role.name, 0)
        if role.backoff_limit is not None and count > role.backoff_limit:
            return ExceededLimit(role.name, count, role.backoff_limit)
    if limit is not None and record.total > limit:
        return ExceededLimit("", record.total, limit)
    return None


BASE_DELAY = timedelta(seconds=10)
REFUSAL_BASE_DELAY = timedelta(seconds=1)
MAX_DELAY = timedelta(minutes=5)
RESET_AFTER = timedelta(minutes=10)

_ZERO = timedelta(0)
_MAX_DOUBLINGS = 9


def rank_key(role: ReplicaRole, index: int) -> str:
    """Return the key of a rank in ``RestartRecord.ranks``: ``worker-3``."""
    return f"{role.label}-{index}"


def record_rank_failures(
    record: RestartRecord,
    failed: Iterable[str],
    refused: Mapping[str, str],
    now: datetime,
) -> RestartRecord:
    """Count failures and refusals that no status counts yet; drop ranks that are quiet again."""
    ranks = {key: rank for key, rank in record.ranks.items() if not _is_quiet(rank, now)}
    for key in sorted(failed):
        failures = ranks[key].failures + 1 if key in ranks else 1
        ranks[key] = RankBackoff(failures=failures, since=now)
    for key, uid in sorted(refused.items()):
        rank = ranks.get(key, RankBackoff())
        ranks[key] = structs.replace(rank, refusals=rank.refusals + 1, since=now, refused_pod=uid)
    return structs.replace(record, ranks=ranks)


def time_to_rank_replacement(record: RestartRecord, key: str, now: datetime) -> timedelta:
    """Return the time until a rank may get its next pod; zero or less: now.

    It is never longer than the delay itself, even if the clock was set back.
    """
    rank = record.ranks.get(key)
    if rank is None or rank.since is None:
        return _ZERO
    delay = _rank_delay(rank)
    return min(rank.since + delay - now, delay)


def record_gang_restart(record: RestartRecord, now: datetime) -> RestartRecord:
    since = now - record.burst_start if record.burst_start else None
    if since is None or not _ZERO <= since <= RESET_AFTER + failure_delay(record.bursts):
        # A restart in the future means that the clock was set back: reset.
        return structs.replace(record, bursts=1, burst_start=now)
    return structs.replace(record, bursts=record.bursts + 1, burst_start=now)


def time_to_gang_restart(record: RestartRecord, now: datetime) -> timedelta:
    """Return the time until any replica may be created; zero or less if they may be now.

    It is never longer than the delay itself, even if the clock was set back.
    """
    if record.burst_start is None:
        return _ZERO
    delay = failure_delay(record.bursts)
    return min(record.burst_start + delay - now, delay)


def failure_delay(failures: int) -> timedelta:
    """Return the delay after a number of failures in succession: none after the first."""
    if failures <= 1:
        return _ZERO
    return min(BASE_DELAY * (1 << min(failures - 2, _MAX_DOUBLINGS)), MAX_DELAY)


def refusal_delay(refusals: int) -> timedelta:
    return min(REFUSAL_BASE_DELAY * (1 << min(refusals - 1, _MAX_DOUBLINGS)), MAX_DELAY)


def _rank_delay(rank: RankBackoff) -> timedelta:
    return refusal_delay(rank.refusals) if rank.refusals else failure_delay(rank.failures)


def _is_quiet(rank: RankBackoff, now: datetime) -> bool:
    """Return whether a rank ran long enough since, or the clock was set back."""
    if rank.since is None:
        return True
    return not _ZERO <= now - rank.since <= RESET_AFTER + _rank_delay(rank)
