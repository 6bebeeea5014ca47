"""Prometheus metrics of the operator, under upstream's names where upstream has one.

A job is counted after the status that records the transition is stored, so neither a conflict nor a
restart of the operator counts anything twice. ``deleted`` counts what upstream counts: jobs that
this operator deleted because their TTL was over. Deletions by users cannot be counted exactly,
because they may happen while the operator is down.

Label values are namespaces, frameworks and names from fixed tables, never jobs.
"""

from prometheus_client import Counter

from gangline.api.kubeflow import JobStatus
from gangline.operator import conditions
from gangline.operator.causes import count_restart_causes
from gangline.operator.decision import ObservedJob
from gangline.operator.job import NormalizedJob

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
        if conditions.is_condition_true(after.conditions, type_) > conditions.is_condition_true(
            before.conditions, type_
        ):
            counter.labels(*labels).inc()
    restarted = after.restarts.total - before.restarts.total
    if restarted > 0:
        JOBS_RESTARTED.labels(*labels).inc(restarted)
    for restart, count in count_restart_causes(observed, after).items():
        RESTARTS.labels(job.kind.framework, restart.scope, restart.cause).inc(count)


def count_deleted(job: NormalizedJob) -> None:
    JOBS_DELETED.labels(job.meta.namespace, job.kind.framework).inc()
