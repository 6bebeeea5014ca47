"""Causes of the restarts that a new status counts, with the names of ``api.failure``.

The causes come from fixed tables, so the cardinality of the metric is bounded.
"""

from collections import Counter as Tally
from typing import NamedTuple

import msgspec

from gangline.api import failure, pod
from gangline.api.kubeflow import JobStatus
from gangline.operator.decision import ObservedJob
from gangline.operator.replicas import ObservedPod

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
