"""What the operator counts, under upstream's names where upstream has one.

A job is counted when the status that says so has been stored, so neither a conflict nor a restart
of the operator counts anything twice. ``deleted`` counts what upstream's does: jobs that this
operator removed when their time to live was over. What users delete, it does not see happen while
it is away, and could not count right.

Labels are namespaces, frameworks and words of fixed tables, never jobs.
"""

from prometheus_client import Counter

from gangline.api.kubeflow import JobStatus
from gangline.operator import causes, conditions
from gangline.operator.decision import Observed
from gangline.operator.job import TrainingJob

_LABELS = ("job_namespace", "framework")
JOBS_CREATED = Counter("training_operator_jobs_created", "Jobs first seen", _LABELS)
JOBS_SUCCESSFUL = Counter("training_operator_jobs_successful", "Jobs that succeeded", _LABELS)
JOBS_FAILED = Counter("training_operator_jobs_failed", "Jobs that failed", _LABELS)
JOBS_RESTARTED = Counter(
    "training_operator_jobs_restarted", "Restarts of replicas, in place and by new pods", _LABELS
)
RESTARTS = Counter(
    "gangline_operator_restarts",
    "Restarts by what caused them: of a replica, or of all together (gang)",
    ("framework", "scope", "cause"),
)
JOBS_DELETED = Counter("training_operator_jobs_deleted", "Jobs removed after their time", _LABELS)
WRITES = Counter("gangline_operator_writes", "Requests that write", ("kind", "verb"))
ADOPTED = Counter(
    "gangline_operator_adopted",
    "Objects taken over, by what they were given: labels, an owner, a gang",
    ("kind", "given"),
)

_BY_CONDITION = {
    conditions.CREATED: JOBS_CREATED,
    conditions.SUCCEEDED: JOBS_SUCCESSFUL,
    conditions.FAILED: JOBS_FAILED,
}


def count_status(observed: Observed, after: JobStatus) -> None:
    """Count what a job's new status says that the one it was decided upon did not."""
    job, before = observed.job, observed.status
    labels = (job.meta.namespace, job.kind.framework)
    for type_, counter in _BY_CONDITION.items():
        if conditions.holds(after.conditions, type_) > conditions.holds(before.conditions, type_):
            counter.labels(*labels).inc()
    restarts = after.restarts.total - before.restarts.total
    if restarts > 0:
        JOBS_RESTARTED.labels(*labels).inc(restarts)
    for restart, count in causes.restarts(observed, after).items():
        RESTARTS.labels(job.kind.framework, restart.scope, restart.cause).inc(count)


def count_deleted(job: TrainingJob) -> None:
    """Count a job that was removed because its time to live is over."""
    JOBS_DELETED.labels(job.meta.namespace, job.kind.framework).inc()
