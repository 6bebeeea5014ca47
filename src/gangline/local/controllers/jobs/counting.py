"""Counts every ended pod of a Job exactly once, although pods may be deleted at any time.

A pod has a finalizer. When it has ended, its uid is written to ``uncountedTerminatedPods``; then
the finalizer is removed; when the watch shows that, the uid becomes part of the count. The
controller may end between any two of these writes. Succeeded pods of an indexed Job need no uids:
the set of completed indexes counts each of them once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.local.controllers.jobs.indexes import format_indexes, index_of, parse_indexes
from gangline.local.controllers.jobs.types import FINALIZER, JobStatus, RawJob, UncountedPods


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Pods of a Job by state."""

    active: tuple[Pod, ...]
    """Neither ended nor being deleted."""
    terminating: tuple[Pod, ...]
    """Being deleted, and not ended."""
    succeeded: int
    failed: int
    counted_succeeded: int
    counted_failed: int
    uncounted: UncountedPods
    completed: frozenset[int]
    """Completed indexes of an indexed Job."""
    ended: tuple[tuple[datetime | None, bool], ...]
    """Time and success of each pod whose end was not noticed before."""
    release: tuple[Pod, ...]
    """Pods whose finalizer may be removed once the status is written."""


def count_pods(job: RawJob, pods: Sequence[Pod]) -> PodCounts:
    """Count the pods of a Job, those in its status included."""
    status, held = job.status, {p.metadata.uid for p in pods if FINALIZER in p.metadata.finalizers}
    before = status.uncounted_terminated_pods
    completions = job.completions or 0
    completed = parse_indexes(status.completed_indexes, completions) if job.is_indexed else set()
    succeeded = [uid for uid in before.succeeded if uid in held]
    failed = [uid for uid in before.failed if uid in held]
    counted_succeeded = status.succeeded + len(before.succeeded) - len(succeeded)
    counted_failed = status.failed + len(before.failed) - len(failed)
    known = {*succeeded, *failed}
    ended, release = [], []
    for pod in pods:
        uid = pod.metadata.uid
        success, failure = pod.status.phase == "Succeeded", _has_failed(job, pod)
        if uid not in held or not (success or failure):
            continue
        release.append(pod)
        if uid in known:
            continue
        if not success:
            failed.append(uid)
            ended.append((finish_time(pod), False))
        elif not job.is_indexed:
            succeeded.append(uid)
            ended.append((finish_time(pod), True))
        elif (index := index_of(pod)) is not None and index < completions:
            if index not in completed:
                ended.append((finish_time(pod), True))
            completed.add(index)
    if job.is_indexed:
        counted_succeeded = len(completed)
    return PodCounts(
        active=tuple(pod for pod in pods if _is_active(pod)),
        terminating=tuple(
            pod
            for pod in pods
            if pod.metadata.deletion_timestamp and pod.status.phase not in TERMINAL_PHASES
        ),
        succeeded=counted_succeeded + len(succeeded),
        failed=counted_failed + len(failed),
        counted_succeeded=counted_succeeded,
        counted_failed=counted_failed,
        uncounted=UncountedPods(succeeded, failed),
        completed=frozenset(completed),
        ended=tuple(ended),
        release=tuple(release),
    )


def counted_status(job: RawJob, counts: PodCounts, ready: int) -> JobStatus:
    """Return the status of a Job with these counts."""
    status = job.status
    return JobStatus(
        conditions=status.conditions,
        start_time=status.start_time,
        completion_time=status.completion_time,
        active=len(counts.active),
        ready=ready,
        terminating=len(counts.terminating),
        succeeded=counts.counted_succeeded,
        failed=counts.counted_failed,
        completed_indexes=format_indexes(counts.completed),
        uncounted_terminated_pods=counts.uncounted,
    )


def _is_active(pod: Pod) -> bool:
    return pod.status.phase not in TERMINAL_PHASES and pod.metadata.deletion_timestamp is None


def _has_failed(job: RawJob, pod: Pod) -> bool:
    """A deleted pod is replaced at once, unless the Job replaces only failed pods."""
    if pod.status.phase in TERMINAL_PHASES:
        return pod.status.phase == "Failed"
    replaces_terminating = job.spec.pod_replacement_policy != "Failed"
    return pod.metadata.deletion_timestamp is not None and replaces_terminating


def finish_time(pod: Pod) -> datetime | None:
    """Return when the last container of a pod ended."""
    times = [
        status.state.terminated.finished_at
        for status in pod.status.container_statuses
        if status.state.terminated is not None
    ]
    return max((time for time in times if time is not None), default=None)
