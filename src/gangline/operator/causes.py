"""Causes of the restarts that a new status counts, with the names of ``api.failure``.

The causes come from fixed tables, so the cardinality of the metric is bounded.
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from gangline.api import failure, pod
from gangline.api.kubeflow import JobStatus
from gangline.operator.decision import Observed
from gangline.operator.replicas import Pod

REPLICA, GANG = "replica", "gang"
RESIZED = "Resized"
DELETED = "Deleted"
COMPLETED = "Completed"
"""A container that exited with 0 and is restarted nevertheless, under ``restartPolicy: Always``."""
UNKNOWN = "Unknown"


class Restart(NamedTuple):
    """The labels of one counted restart."""

    scope: str
    cause: str


def restarts(observed: Observed, after: JobStatus) -> Counter[Restart]:
    """Count the restarts that ``after`` records and the observed status does not."""
    container = observed.job.kind.container
    before, now = observed.status.restarts, after.restarts
    if now.generation > before.generation:
        return Counter([Restart(GANG, _of_gang(observed, container))])
    found: Counter[Restart] = Counter()
    if now.total <= before.total:
        return found
    for each in observed.pods:
        gained = now.pods.get(each.uid, 0) - before.pods.get(each.uid, 0)
        if gained > 0 and each.failed:
            found[Restart(REPLICA, _of_failed(each, container))] += 1
            gained -= 1
        if gained > 0:
            found[Restart(REPLICA, _in_place(each, container))] += gained
    return found


def _of_gang(observed: Observed, container: str) -> str:
    failed = next((each for each in observed.pods if each.failed), None)
    if failed is not None:
        return _of_failed(failed, container)
    return DELETED if any(each.terminating for each in observed.pods) else RESIZED


def _of_failed(seen: Pod, container: str) -> str:
    complete = msgspec.convert(msgspec.to_builtins(seen), pod.Pod)
    found = failure.of_pod(complete, container)
    return found.cause if found else UNKNOWN


def _in_place(seen: Pod, container: str) -> str:
    """Return why the main container, else any container, ended before it was restarted in place."""
    statuses = [*seen.status.container_statuses, *seen.status.init_container_statuses]
    statuses.sort(key=lambda status: status.name != container)
    ends = (status.state.terminated or status.last_state.terminated for status in statuses)
    end = next(filter(None, ends), None)
    if end is None:
        return UNKNOWN
    found = failure.of_exit(end.exit_code, end.reason)
    return found.cause if found else COMPLETED
