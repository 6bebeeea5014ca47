"""Counting restarts, each exactly once, and comparing them with backoffLimit.

A restart is a container that the kubelet started again in place, or a failed pod that is replaced
by a new one. Counts outlive pods and the operator: the job's status holds the sum, and with it
what each pod that still exists has contributed, so that nothing is counted again and nothing is
forgotten when the pod goes. A failed pod is deleted only after the status that counts it has been
stored.

Upstream forgets the counts of recreated pods and so retries ExitCode roles for ever. It also
fails a job *at* its limit, so that a limit of 1 allows no restart at all; here, as the field's
description promises, the limit is the number of restarts that are allowed.
"""

from collections.abc import Iterable

import msgspec

from gangline.api.kubeflow import RestartRecord
from gangline.operator.replicas import Pod

CRASH_LOOP = "CrashLoopBackOff"


def in_place(pod: Pod) -> int:
    """Count how often the kubelet restarted this pod's containers, or is about to.

    A container that waits in the crash loop has failed once more than it has been restarted: that
    restart is certain and counted early, so that a limit is not noticed minutes late.
    """
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    waiting = (status.state.waiting for status in statuses)
    due = sum(1 for state in waiting if state and state.reason == CRASH_LOOP)
    return sum(status.restart_count for status in statuses) + due


def count(record: RestartRecord, pods: Iterable[Pod], replaced: frozenset[str]) -> RestartRecord:
    """Bring the record up to what is seen.

    Args:
        record: the stored record.
        pods: the pods that exist.
        replaced: uids of those that have failed and are to be replaced.
    """
    total, seen = record.total, {}
    for pod in sorted(pods, key=lambda pod: pod.uid):
        known = record.pods.get(pod.uid, 0)
        now = known if pod.terminating else in_place(pod) + (pod.uid in replaced)
        if now := max(now, known):
            seen[pod.uid] = now
        total += now - known
    if (total, seen) == (record.total, record.pods):
        return record
    return msgspec.structs.replace(record, total=total, pods=seen)


def is_exceeded(record: RestartRecord, limit: int | None) -> bool:
    """Say whether there have been more restarts than the limit allows."""
    return limit is not None and record.total > limit
