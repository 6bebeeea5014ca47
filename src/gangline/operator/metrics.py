"""Prometheus metrics of the operator, under upstream's names where upstream has one.

A job is counted after the status that records the transition is stored, so neither a conflict nor a
restart of the operator counts anything twice. ``training_operator_jobs_deleted`` counts what
upstream counts: jobs that this operator deleted because their TTL was over. Deletions by users
cannot be counted exactly, because they may happen while the operator is down.

Label values are namespaces, frameworks, nodes and names from fixed tables, never jobs: the causes
of restarts are those of ``api.failure``.
"""

from collections import Counter as Tally
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec
from prometheus_client import Counter, Histogram

from gangline.api import failure
from gangline.api.core.pod import Pod
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.conditions import TRUE, find_condition, is_condition_true
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
UNKNOWN_BLAME = "unknown"


class RestartCause(NamedTuple):
    scope: str
    cause: str


class NodeFailure(NamedTuple):
    """The labels of one failure that is blamed on its node."""

    node: str
    cause: str


class _Restart(NamedTuple):
    """A counted restart, with the pod whose failure caused it."""

    cause: RestartCause
    pod: ObservedPod | None = None
    times: int = 1


def count_restart_causes(observed: ObservedJob, after: JobStatus) -> Tally[RestartCause]:
    causes: Tally[RestartCause] = Tally()
    for restart in _restarts(observed, after):
        causes[restart.cause] += restart.times
    return causes


def count_node_failures(observed: ObservedJob, after: JobStatus) -> Tally[NodeFailure]:
    """Count those of these restarts that a fault of a node has caused."""
    failures: Tally[NodeFailure] = Tally()
    for (_, cause), pod, count in _restarts(observed, after):
        if pod is not None and failure.blame_of_cause(cause) is failure.Blame.NODE:
            failures[NodeFailure(pod.spec.node_name, cause)] += count
    return failures


def _restarts(observed: ObservedJob, after: JobStatus) -> Iterator[_Restart]:
    container = observed.job.kind.container
    before, now = observed.status.restarts, after.restarts
    if now.generation > before.generation:
        yield _gang_restart(observed, container)
        return
    if now.total <= before.total:
        return
    for pod in observed.pods:
        gained = now.pods.get(pod.uid, 0) - before.pods.get(pod.uid, 0)
        if gained > 0 and pod.failed:
            yield _Restart(RestartCause(REPLICA_SCOPE, _failure_cause(pod, container)), pod)
            gained -= 1
        if gained > 0:
            cause = _in_place_cause(pod, container)
            yield _Restart(RestartCause(REPLICA_SCOPE, cause), pod, gained)


def _gang_restart(observed: ObservedJob, container: str) -> _Restart:
    failed = next((pod for pod in observed.pods if pod.failed), None)
    if failed is not None:
        return _Restart(RestartCause(GANG_SCOPE, _failure_cause(failed, container)), failed)
    is_deleted = any(pod.is_terminating for pod in observed.pods)
    return _Restart(RestartCause(GANG_SCOPE, DELETED_CAUSE if is_deleted else RESIZED_CAUSE))


def recovery_s(observed: ObservedJob, after: JobStatus) -> float | None:
    """Return how long a job was restarting, in seconds; None if it has not just recovered.

    The times are those of the conditions, so a restart of the operator meanwhile changes nothing.
    """
    began = _true_since(observed.status, conditions.RESTARTING)
    ended = _true_since(after, conditions.RUNNING)
    return max(0.0, (ended - began).total_seconds()) if began and ended else None


def _true_since(status: JobStatus, type_: str) -> datetime | None:
    condition = find_condition(status.conditions, type_)
    return condition.last_transition_time if condition and condition.status == TRUE else None


def _failure_cause(seen: ObservedPod, container: str) -> str:
    complete = msgspec.convert(msgspec.to_builtins(seen), Pod)
    pod_failure = failure.failure_of_pod(complete, container)
    return pod_failure.cause if pod_failure else UNKNOWN_CAUSE


def _in_place_cause(seen: ObservedPod, container: str) -> str:
    """Return why the main container, else any container, ended before it was restarted in place."""
    statuses = [*seen.status.container_statuses, *seen.status.init_container_statuses]
    statuses.sort(key=lambda status: status.name != container)
    ends = (status.state.terminated or status.last_state.terminated for status in statuses)
    end = next(filter(None, ends), None)
    if end is None:
        return UNKNOWN_CAUSE
    exit_failure = failure.failure_of_exit(end.exit_code, end.reason)
    return exit_failure.cause if exit_failure else COMPLETED_CAUSE


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
    ("framework", "scope", "cause", "blame"),
)
NODE_FAILURES = Counter(
    "gangline_operator_node_failures",
    "Failures that are blamed on a node; NodeFault was proved by the node check",
    ("node", "cause"),
)
RECOVERY = Histogram(
    "gangline_operator_recovery_seconds",
    "Time from the restart of a job until all of its pods run again",
    ("framework",),
    buckets=(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0),
)
MAX_BLAMED_NODES = 1000
"""Nodes with a label value of their own; further ones are counted as ``OTHER_NODES``."""
OTHER_NODES = "(others)"
_blamed_nodes: set[str] = set()
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
    job, before = observed.job, observed.status
    labels = (job.meta.namespace, job.kind.framework)
    for type_, counter in _BY_CONDITION.items():
        if is_condition_true(after.conditions, type_) > is_condition_true(before.conditions, type_):
            counter.labels(*labels).inc()
    restarted = after.restarts.total - before.restarts.total
    if restarted > 0:
        JOBS_RESTARTED.labels(*labels).inc(restarted)
    for restart, count in count_restart_causes(observed, after).items():
        blame = failure.blame_of_cause(restart.cause) or UNKNOWN_BLAME
        RESTARTS.labels(job.kind.framework, restart.scope, restart.cause, blame).inc(count)
    for (node, cause), count in count_node_failures(observed, after).items():
        NODE_FAILURES.labels(_node_label(node), cause).inc(count)
    if (took_s := recovery_s(observed, after)) is not None:
        RECOVERY.labels(job.kind.framework).observe(took_s)


def _node_label(node: str) -> str:
    if node not in _blamed_nodes and len(_blamed_nodes) >= MAX_BLAMED_NODES:
        return OTHER_NODES
    _blamed_nodes.add(node)
    return node


def count_deleted(job: NormalizedJob) -> None:
    JOBS_DELETED.labels(job.meta.namespace, job.kind.framework).inc()
