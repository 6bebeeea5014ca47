"""Jobs: which pods to create and delete, and the status to write.

As kube-controller-manager 1.32: a Job that has reached its end first gets the condition
``SuccessCriteriaMet`` or ``FailureTarget``, and ``Complete`` or ``Failed`` once no pod is left.
Failed pods are replaced after a delay that doubles with each failure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.meta.conditions import find_condition, is_condition_true, set_condition
from gangline.api.meta.objects import Condition
from gangline.local.controllers.jobs.counting import PodCounts, count_pods, counted_status
from gangline.local.controllers.jobs.indexes import index_of
from gangline.local.controllers.jobs.types import FINALIZER, JobStatus, RawJob
from gangline.local.controllers.replica_sets.plan import deletion_rank

MAX_CREATIONS = 500
"""Limit of creations in one pass, as in kube-controller-manager."""
FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=10)
_LONGEST_DOUBLING = 10

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
SUCCESS_CRITERIA_MET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"


class JobEvent(NamedTuple):
    """An event to record after the status was written."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class BackoffRecord:
    """Failures since the last success."""

    failures: int = 0
    last_failure: datetime | None = None

    def after(
        self, ended: Iterable[tuple[datetime | None, bool]], now: datetime
    ) -> "BackoffRecord":
        """Return the record after these ends of pods: time and success of each."""
        record = self
        for time, success in sorted((time or now, success) for time, success in ended):
            record = BackoffRecord() if success else BackoffRecord(record.failures + 1, time)
        return record

    @property
    def next_creation(self) -> datetime | None:
        """The time before which no failed pod is replaced."""
        if self.last_failure is None:
            return None
        doublings = min(self.failures - 1, _LONGEST_DOUBLING)
        return self.last_failure + min(FIRST_DELAY * (1 << doublings), LONGEST_DELAY)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The writes of one pass, in this order."""

    status: JobStatus
    backoff: BackoffRecord
    release: tuple[Pod, ...] = ()
    """Pods whose finalizer is removed."""
    delete: tuple[Pod, ...] = ()
    """Pods that are deleted and then count as failed: the Job has ended."""
    withdraw: tuple[Pod, ...] = ()
    """Pods that are deleted without counting: the Job is suspended or has fewer pods."""
    create: tuple[int | None, ...] = ()
    """The index of each new pod; None in a Job without indexes."""
    events: tuple[JobEvent, ...] = ()
    delete_job: bool = False
    requeue_at: datetime | None = None


def plan_job(job: RawJob, pods: Sequence[Pod], backoff: BackoffRecord, now: datetime) -> JobPlan:
    """Compare a Job with its pods."""
    held = tuple(pod for pod in pods if FINALIZER in pod.metadata.finalizers)
    if job.metadata.deletion_timestamp is not None:
        return JobPlan(job.status, backoff, release=held)
    if finished := _finish(job.status):
        return _plan_finished(job, held, finished, backoff, now)
    counts = count_pods(job, pods)
    backoff = backoff.after(counts.ended, now)
    ready = sum(is_pod_ready(pod) for pod in counts.active)
    plan = JobPlan(counted_status(job, counts, ready), backoff, release=counts.release)
    plan = _start_or_suspend(job, counts, plan, now)
    plan = _end(job, counts, plan, now)
    if _is_ending(plan.status) or _finish(plan.status) or job.spec.suspend:
        return plan
    return _run_pods(job, counts, plan, now)


def _finish(status: JobStatus) -> Condition | None:
    for type_ in (COMPLETE, FAILED):
        if is_condition_true(status.conditions, type_):
            return find_condition(status.conditions, type_)
    return None


def _is_ending(status: JobStatus) -> bool:
    return any(
        is_condition_true(status.conditions, t) for t in (SUCCESS_CRITERIA_MET, FAILURE_TARGET)
    )


def _plan_finished(
    job: RawJob, held: tuple[Pod, ...], finished: Condition, backoff: BackoffRecord, now: datetime
) -> JobPlan:
    plan = JobPlan(job.status, backoff, release=held)
    seconds = job.spec.ttl_seconds_after_finished
    if seconds is None:
        return plan
    expires = (finished.last_transition_time or now) + timedelta(seconds=seconds)
    if expires <= now:
        return replace(plan, delete_job=True)
    return replace(plan, requeue_at=expires)


def _start_or_suspend(job: RawJob, counts: PodCounts, plan: JobPlan, now: datetime) -> JobPlan:
    status, suspended = plan.status, is_condition_true(plan.status.conditions, SUSPENDED)
    if job.spec.suspend and not _is_ending(status):
        plan = replace(plan, withdraw=counts.active)
        if suspended:
            return plan
        status = _with(status, now, SUSPENDED, "True", "JobSuspended", "Job suspended")
        status = msgspec.structs.replace(status, start_time=None)
        return _noted(replace(plan, status=status), "Normal", "Suspended", "Job suspended")
    if suspended:
        status = _with(status, now, SUSPENDED, "False", "JobResumed", "Job resumed")
        status = msgspec.structs.replace(status, start_time=now)
        return _noted(replace(plan, status=status), "Normal", "Resumed", "Job resumed")
    if status.start_time is None:
        return replace(plan, status=msgspec.structs.replace(status, start_time=now))
    return plan


def _end(job: RawJob, counts: PodCounts, plan: JobPlan, now: datetime) -> JobPlan:
    """Set the conditions of a Job that has reached its end, and delete its last pods."""
    status = plan.status
    if not _is_ending(status):
        if failure := _failure(job, counts, status, now):
            status = _with(status, now, FAILURE_TARGET, "True", *failure)
        elif success := _success(job, counts):
            status = _with(status, now, SUCCESS_CRITERIA_MET, "True", *success)
        else:
            deadline = _deadline(job, status)
            return replace(plan, requeue_at=deadline)
    plan = replace(plan, status=status, delete=counts.active)
    uncounted = status.uncounted_terminated_pods
    if counts.active or counts.terminating or uncounted.succeeded or uncounted.failed:
        return plan
    if target := find_condition(status.conditions, FAILURE_TARGET):
        status = _with(status, now, FAILED, "True", target.reason, target.message)
        plan = _noted(plan, "Warning", target.reason, target.message)
        return replace(plan, status=status)
    met = find_condition(status.conditions, SUCCESS_CRITERIA_MET)
    assert met is not None
    status = _with(status, now, COMPLETE, "True", met.reason, met.message)
    status = msgspec.structs.replace(status, completion_time=now)
    return _noted(replace(plan, status=status), "Normal", "Completed", "Job completed")


def _failure(
    job: RawJob, counts: PodCounts, status: JobStatus, now: datetime
) -> tuple[str, str] | None:
    limit = job.backoff_limit
    restarts = sum(map(_restarts, counts.active))
    restarted = restarts > 0 if limit == 0 else restarts >= limit
    on_failure = (job.spec.template.get("spec") or {}).get("restartPolicy") == "OnFailure"
    if counts.failed > limit or (on_failure and restarted):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline = _deadline(job, status)
    if deadline is not None and deadline <= now:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    return None


def _success(job: RawJob, counts: PodCounts) -> tuple[str, str] | None:
    if job.completions is None:
        done = counts.succeeded > 0 and not counts.active
    else:
        done = counts.succeeded >= job.completions
    reason = "CompletionsReached", "Reached expected number of succeeded pods"
    return reason if done else None


def _deadline(job: RawJob, status: JobStatus) -> datetime | None:
    seconds = job.spec.active_deadline_seconds
    if seconds is None or status.start_time is None or job.spec.suspend:
        return None
    return status.start_time + timedelta(seconds=seconds)


def _restarts(pod: Pod) -> int:
    found = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return sum(status.restart_count for status in found)


def _run_pods(job: RawJob, counts: PodCounts, plan: JobPlan, now: datetime) -> JobPlan:
    """Delete surplus pods, and create missing ones unless a failure was too recent."""
    surplus = _invalid_indexes(job, counts) if job.is_indexed else []
    active = [pod for pod in counts.active if pod not in surplus]
    desired = _desired_active(job, counts, len(active))
    surplus += sorted(active, key=deletion_rank)[: max(0, len(active) - desired)]
    waiting = 0
    if job.spec.pod_replacement_policy == "Failed":
        waiting = len(counts.terminating)
    missing = min(desired - len(active) - waiting, MAX_CREATIONS)
    plan = replace(plan, withdraw=tuple(surplus))
    if missing <= 0 or surplus:
        return plan
    held_until = plan.backoff.next_creation
    if held_until is not None and held_until > now:
        return replace(plan, requeue_at=min(filter(None, (plan.requeue_at, held_until))))
    return replace(plan, create=_new_indexes(job, counts, active, missing))


def _desired_active(job: RawJob, counts: PodCounts, active: int) -> int:
    if job.completions is not None:
        return max(0, min(job.parallelism, job.completions - counts.succeeded))
    # One success of a work queue means that no work is left: the others end by themselves.
    return active if counts.succeeded else job.parallelism


def _new_indexes(
    job: RawJob, counts: PodCounts, active: Sequence[Pod], missing: int
) -> tuple[int | None, ...]:
    if not job.is_indexed:
        return (None,) * missing
    taken = counts.completed | {index_of(pod) for pod in active}
    if job.spec.pod_replacement_policy == "Failed":
        taken |= {index_of(pod) for pod in counts.terminating}
    free = (index for index in range(job.completions or 0) if index not in taken)
    return tuple(index for index, _ in zip(free, range(missing), strict=False))


def _invalid_indexes(job: RawJob, counts: PodCounts) -> list[Pod]:
    """Return pods without an index of the Job, with a completed one, or with that of another."""
    taken: set[int] = set(counts.completed)
    invalid = []
    for pod in sorted(counts.active, key=deletion_rank, reverse=True):
        index = index_of(pod)
        if index is None or index >= (job.completions or 0) or index in taken:
            invalid.append(pod)
        else:
            taken.add(index)
    return invalid


def _with(
    status: JobStatus, now: datetime, type_: str, value: str, reason: str, message: str
) -> JobStatus:
    condition = Condition(type=type_, status=value, reason=reason, message=message)
    conditions = set_condition(status.conditions, condition, now)
    return msgspec.structs.replace(status, conditions=conditions)


def _noted(plan: JobPlan, type_: str, reason: str, message: str) -> JobPlan:
    return replace(plan, events=(*plan.events, JobEvent(type_, reason, message)))
