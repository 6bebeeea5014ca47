"""Prometheus metrics of the operator, under upstream's names where upstream has one.

A job is counted after the status that records the transition is stored, so neither a conflict nor a
restart of the operator counts anything twice. ``training_operator_jobs_deleted`` counts what
upstream counts: jobs that this operator deleted because their TTL was over. Deletions by users
cannot be counted exactly, because they may happen while the operator is down.

Label values are namespaces, frameworks and names from fixed tables, never jobs: the causes of
restarts are those of ``api.failure``.
"""

from collections import Counter as Tally
from typing import NamedTuple

import msgspec
from prometheus_client import Counter

from gangline.api import failure
from gangline.api.core import pod
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.conditions import is_condition_true
from gangline.operator.model import conditions
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.plan import ObservedJob
from gangline.operator.model.replicas import ObservedPod

REPLICA_SCOPE, GANG_SCOPE = "replica", "gang"
RESIZED_CAUSE = "Resized"
DELETED_CAUSE = "Deleted"
COMPLETED_CAUSE = "Completed"
"""A container that exited with 0 and is restarted nevertheless, under ``restartPolicy: Always``."""
UNKNOWN_CAUSE = "Unknown"


class RestartCause(NamedTuple):
    """The labels of one counted restart."""

    scope: str
    cause: str


def count_restart_causes(observed: ObservedJob, after: JobStatus) -> Tally[RestartCause]:
    """Count the restarts that ``after`` records and the observed status does not."""
    container = observed.job.kind.container
    before, now = observed.status.restarts, after.restarts
    if now.generation > before.generation:
        return Tally([RestartCause(GANG_SCOPE, _gang_cause(observed, container))])
    found: Tally[RestartCause] = Tally()
    if now.total <= before.total:
        return found
    for each in observed.pods:
        gained = now.pods.get(each.uid, 0) - before.pods.get(each.uid, 0)
        if gained > 0 and each.failed:
            found[RestartCause(REPLICA_SCOPE, _failure_cause(each, container))] += 1
            gained -= 1
        if gained > 0:
            found[RestartCause(REPLICA_SCOPE, _in_place_cause(each, container))] += gained
    return found


def _gang_cause(observed: ObservedJob, container: str) -> str:
    failed = next((each for each in observed.pods if each.failed), None)
    if failed is not None:
        return _failure_cause(failed, container)
    return DELETED_CAUSE if any(each.is_terminating for each in observed.pods) else RESIZED_CAUSE


def _failure_cause(seen: ObservedPod, container: str) -> str:
    complete = msgspec.convert(msgspec.to_builtins(seen), pod.Pod)
    found = failure.failure_of_pod(complete, container)
    return found.cause if found else UNKNOWN_CAUSE


def _in_place_cause(seen: ObservedPod, container: str) -> str:
    """Return why the main container, else any container, ended before it was restarted in place."""
    statuses = [*seen.status.container_statuses, *seen.status.init_container_statuses]
    statuses.sort(key=lambda status: status.name != container)
    ends = (status.state.terminated or status.last_state.terminated for status in statuses)
    end = next(filter(None, ends), None)
    if end is None:
        return UNKNOWN_CAUSE
    found = failure.failure_of_exit(end.exit_code, end.reason)
    return found.cause if found else COMPLETED_CAUSE


_LABELS = ("job_namespace", "framework")
JOBS_CREATED = Counter(
    "training_operator_jobs_created", "Jobs observed for the first time", _LABELS
)
JOBS_SUCCESSFUL = Counter("training_operator_jobs_successful", "Jobs that succeeded", _LABELS)
JOBS_FAILED = Counter("training_operator_jobs_failed", "Jobs that failed", _LABELS)
JOBS_RESTARTED = Counter(
    "training_operator_jobs_restarted", "Restarts of replicas, in place and by new pods", _LABELS
)
RESTARTS = Counter(
    "gangline_operator_restarts",
    "Restarts by cause: of a replica, or of all replicas together (gang)",
    ("framework", "scope", "cause"),
)
JOBS_DELETED = Counter("training_operator_jobs_deleted", "Jobs deleted after their TTL", _LABELS)
WRITES = Counter("gangline_operator_writes", "Write requests", ("kind", "verb"))
ADOPTED = Counter(
    "gangline_operator_adopted",
    "Adopted objects by patch: labels, an owner, a gang",
    ("kind", "given"),
)

_BY_CONDITION = {
    conditions.CREATED: JOBS_CREATED,
    conditions.SUCCEEDED: JOBS_SUCCESSFUL,
    conditions.FAILED: JOBS_FAILED,
}


def count_transitions(observed: ObservedJob, after: JobStatus) -> None:
    """Count the transitions between the observed status and the stored one."""
    job, before = observed.job, observed.status
    labels = (job.meta.namespace, job.kind.framework)
    for type_, counter in _BY_CONDITION.items():
        if is_condition_true(after.conditions, type_) > is_condition_true(before.conditions, type_):
            counter.labels(*labels).inc()
    restarted = after.restarts.total - before.restarts.total
    if restarted > 0:
        JOBS_RESTARTED.labels(*labels).inc(restarted)
    for restart, count in count_restart_causes(observed, after).items():
        RESTARTS.labels(job.kind.framework, restart.scope, restart.cause).inc(count)


def count_deleted(job: NormalizedJob) -> None:
    JOBS_DELETED.labels(job.meta.namespace, job.kind.framework).inc()
