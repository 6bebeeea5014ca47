"""What caused the restarts that a new status counts, in the words of ``api.failure``. Pure.

The words come from tables, so that there are few of them, whatever runs in a cluster.
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
"""A container that ended well and is run again all the same, under ``restartPolicy: Always``."""
UNKNOWN = "Unknown"


class Restart(NamedTuple):
    """What was restarted, and why."""

    scope: str
    cause: str


def restarts(observed: Observed, after: JobStatus) -> Counter[Restart]:
    """Count restarts that ``after`` records and the observed status did not."""
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
    whole = msgspec.convert(msgspec.to_builtins(seen), pod.Pod)
    found = failure.of_pod(whole, container)
    return found.cause if found else UNKNOWN


def _in_place(seen: Pod, container: str) -> str:
    """Say how the container that trains, else any, ended before it was started again."""
    statuses = [*seen.status.container_statuses, *seen.status.init_container_statuses]
    statuses.sort(key=lambda status: status.name != container)
    ends = (status.state.terminated or status.last_state.terminated for status in statuses)
    end = next(filter(None, ends), None)
    if end is None:
        return UNKNOWN
    found = failure.of_exit(end.exit_code, end.reason)
    return found.cause if found else COMPLETED
