"""Jobs: which pods to create and delete, and the status to write, as kube-controller-manager 1.32.

A Job that has reached its end first gets the condition ``SuccessCriteriaMet`` or ``FailureTarget``,
and ``Complete`` or ``Failed`` once no pod is left. Failed pods are replaced after a delay that
doubles with each failure.

Invariant: every ended pod is counted exactly once, although it may be deleted, and the controller
may end, at any time. So each pod has a finalizer:

1. when the pod has ended, its uid is written to ``uncountedTerminatedPods``;
2. then the finalizer is removed;
3. when the watch shows that, the uid leaves the list, and the pod is added to the count.

Succeeded pods of an indexed Job need no uids: the set of completed indexes counts each once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

import msgspec

from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.jobs.training_runtime import FAIL_JOB, IGNORE, PodFailurePolicy
from gangline.api.meta.conditions import find_condition, is_condition_true, set_condition
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire
from gangline.api.meta.resource import Resource
from gangline.local.controllers.jobs.policies import (
    IndexFailures,
    SuccessPolicy,
    index_failures,
    index_of,
    match_failure,
    matched_success,
    parse_indexes,
)
from gangline.local.controllers.replica_sets.plan import PodTemplate, deletion_rank, is_pod_active

FINALIZER = "batch.kubernetes.io/job-tracking"
MAX_INT32 = (1 << 31) - 1
BUILTIN_MANAGER = "kubernetes.io/job-controller"


class RawBatchJobSpec(Wire):
    """The spec of a Job with its template unparsed."""

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None
    selector: LabelSelector = LabelSelector()
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = ""
    suspend: bool | None = None
    pod_replacement_policy: str = ""
    managed_by: str = ""
    template: PodTemplate = msgspec.field(default_factory=dict)


class UncountedPods(Wire):
    """Uids of ended pods whose finalizer is about to be removed, and which are then counted."""

    succeeded: list[str] = msgspec.field(default_factory=list)
    failed: list[str] = msgspec.field(default_factory=list)


class RawBatchJobStatus(Wire):
    conditions: list[Condition] = msgspec.field(default_factory=list)
    start_time: datetime | None = None
    completion_time: datetime | None = None
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str = ""
    uncounted_terminated_pods: UncountedPods = UncountedPods()


class RawBatchJob(Object):
    spec: RawBatchJobSpec = RawBatchJobSpec()
    status: RawBatchJobStatus = RawBatchJobStatus()

    @property
    def is_indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed"

    @property
    def parallelism(self) -> int:
        return 1 if self.spec.parallelism is None else self.spec.parallelism

    @property
    def completions(self) -> int | None:
        """Desired successes; None: one success ends the Job, which creates no more pods."""
        spec = self.spec
        return 1 if spec.completions is None and spec.parallelism is None else spec.completions

    @property
    def backoff_limit(self) -> int:
        """Failures that end the Job; with a limit for each index, no number does by default."""
        if self.spec.backoff_limit is not None:
            return self.spec.backoff_limit
        return 6 if self.spec.backoff_limit_per_index is None else MAX_INT32

    @property
    def is_managed_here(self) -> bool:
        return self.spec.managed_by in ("", BUILTIN_MANAGER)


RAW_BATCH_JOBS: Resource[RawBatchJob] = Resource(RawBatchJob, "batch", "v1", "jobs", "Job")


def format_indexes(indexes: Iterable[int]) -> str:
    return ",".join(_ranges(sorted(set(indexes))))


def _ranges(indexes: list[int]) -> Iterator[str]:
    start = 0
    for end in range(1, len(indexes) + 1):
        if end < len(indexes) and indexes[end] == indexes[end - 1] + 1:
            continue
        first, last = indexes[start], indexes[end - 1]
        # Two neighbours are listed, as in Kubernetes; three are a range.
        if last - first >= 2:
            yield f"{first}-{last}"
        else:
            yield from map(str, indexes[start:end])
        start = end


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
    fatal: str
    """The message of a rule by which a failed pod ends the Job; empty if there is none."""
    failures: IndexFailures | None
    """The failures of indexes, if each has its own limit."""

    @property
    def failed_indexes(self) -> frozenset[int]:
        return self.failures.failed if self.failures is not None else frozenset()


def count_pods(job: RawBatchJob, pods: Sequence[Pod]) -> PodCounts:
    """Count the pods of a Job, those in its status included."""
    status, held = job.status, {p.metadata.uid for p in pods if FINALIZER in p.metadata.finalizers}
    before = status.uncounted_terminated_pods
    completions = job.completions or 0
    completed = parse_indexes(status.completed_indexes, completions) if job.is_indexed else set()
    succeeded = [uid for uid in before.succeeded if uid in held]
    failed = [uid for uid in before.failed if uid in held]
    counted_succeeded = status.succeeded + len(before.succeeded) - len(succeeded)
    counted_failed = status.failed + len(before.failed) - len(failed)
    noticed = {*succeeded, *failed}
    policy, limit = job.spec.pod_failure_policy, job.spec.backoff_limit_per_index
    decisions = {p.metadata.uid: match_failure(policy, p) for p in pods if _has_failed(job, p)}
    failures = None
    if job.is_indexed and limit is not None:
        before_failed = parse_indexes(status.failed_indexes, completions)
        failures = index_failures(pods, decisions, completed | before_failed, limit)
        failures = replace(failures, failed=failures.failed | before_failed)
        if _is_ending(status):
            failures = replace(failures, last={})
    kept = {p.metadata.uid for p in failures.last.values()} if failures is not None else set()
    ended, release = [], []
    for pod in pods:
        uid = pod.metadata.uid
        success, decision = pod.status.phase == "Succeeded", decisions.get(pod.metadata.uid)
        if uid not in held or uid in kept or not (success or decision):
            continue
        release.append(pod)
        if uid in noticed:
            continue
        if decision is not None:
            if decision.action == IGNORE:
                continue
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
        active=tuple(filter(is_pod_active, pods)),
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
        fatal=next((d.message for d in decisions.values() if d.action == FAIL_JOB), ""),
        failures=failures,
    )


def _has_failed(job: RawBatchJob, pod: Pod) -> bool:
    """A deleted pod is replaced at once, unless the Job replaces only failed pods."""
    if pod.status.phase in TERMINAL_PHASES:
        return pod.status.phase == "Failed"
    replaces_terminating = (
        job.spec.pod_replacement_policy != "Failed" and job.spec.pod_failure_policy is None
    )
    return pod.metadata.deletion_timestamp is not None and replaces_terminating


def finish_time(pod: Pod) -> datetime | None:
    ends = [status.state.terminated for status in pod.status.container_statuses]
    return max((end.finished_at for end in ends if end and end.finished_at), default=None)


MAX_CREATIONS = 500
"""Limit of creations in one pass, as in kube-controller-manager."""
FIRST_DELAY = timedelta(seconds=10)
LONGEST_DELAY = timedelta(minutes=10)
_LONGEST_DOUBLING = 10

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
SUCCESS_CRITERIA_MET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"


class JobPlanEvent(NamedTuple):
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

    status: RawBatchJobStatus
    backoff: BackoffRecord
    release: tuple[Pod, ...] = ()
    """Pods whose finalizer is removed."""
    delete: tuple[Pod, ...] = ()
    """Pods that are deleted and then count as failed: the Job has ended."""
    withdraw: tuple[Pod, ...] = ()
    """Pods that are deleted without counting: the Job is suspended or has fewer pods."""
    create: tuple[int | None, ...] = ()
    """The index of each new pod; None in a Job without indexes."""
    failures: Mapping[int, int] | None = None
    """Failures of each index, for the annotation of its next pod; None without such a limit."""
    events: tuple[JobPlanEvent, ...] = ()
    delete_job: bool = False
    requeue_at: datetime | None = None


def plan_job(
    job: RawBatchJob, pods: Sequence[Pod], backoff: BackoffRecord, now: datetime
) -> JobPlan:
    held = tuple(pod for pod in pods if FINALIZER in pod.metadata.finalizers)
    if job.metadata.deletion_timestamp is not None:
        return JobPlan(job.status, backoff, release=held)
    if finished := _finish(job.status):
        return _plan_finished(job, held, finished, backoff, now)
    counts = count_pods(job, pods)
    backoff = backoff.after(counts.ended, now)
    status = msgspec.structs.replace(
        job.status,
        active=len(counts.active),
        ready=sum(map(is_pod_ready, counts.active)),
        terminating=len(counts.terminating),
        succeeded=counts.counted_succeeded,
        failed=counts.counted_failed,
        completed_indexes=format_indexes(counts.completed),
        failed_indexes=format_indexes(counts.failed_indexes),
        uncounted_terminated_pods=counts.uncounted,
    )
    failures = counts.failures.counts if counts.failures is not None else None
    plan = JobPlan(status, backoff, release=counts.release, failures=failures)
    plan = _start_or_suspend(job, counts, plan, now)
    plan = _end(job, counts, plan, now)
    if _is_ending(plan.status) or _finish(plan.status) or job.spec.suspend:
        return plan
    return _run_pods(job, counts, plan, now)


def _finish(status: RawBatchJobStatus) -> Condition | None:
    for type_ in (COMPLETE, FAILED):
        if is_condition_true(status.conditions, type_):
            return find_condition(status.conditions, type_)
    return None


def _is_ending(status: RawBatchJobStatus) -> bool:
    return any(
        is_condition_true(status.conditions, t) for t in (SUCCESS_CRITERIA_MET, FAILURE_TARGET)
    )


def _plan_finished(
    job: RawBatchJob,
    held: tuple[Pod, ...],
    finished: Condition,
    backoff: BackoffRecord,
    now: datetime,
) -> JobPlan:
    plan = JobPlan(job.status, backoff, release=held)
    seconds = job.spec.ttl_seconds_after_finished
    if seconds is None:
        return plan
    expires = (finished.last_transition_time or now) + timedelta(seconds=seconds)
    return replace(plan, delete_job=True) if expires <= now else replace(plan, requeue_at=expires)


def _start_or_suspend(job: RawBatchJob, counts: PodCounts, plan: JobPlan, now: datetime) -> JobPlan:
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


def _end(job: RawBatchJob, counts: PodCounts, plan: JobPlan, now: datetime) -> JobPlan:
    """Set the conditions of a Job that has reached its end, and delete its last pods."""
    status = plan.status
    if not _is_ending(status):
        if failure := _failure(job, counts, status, now):
            status = _with(status, now, FAILURE_TARGET, "True", *failure)
        elif success := _success(job, counts):
            status = _with(status, now, SUCCESS_CRITERIA_MET, "True", *success)
        else:
            return replace(plan, requeue_at=_deadline(job, status))
    plan = replace(plan, status=status, delete=counts.active)
    if counts.failures is not None and counts.failures.last:
        return plan  # the next pass counts these pods: their indexes do not run again
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
    job: RawBatchJob, counts: PodCounts, status: RawBatchJobStatus, now: datetime
) -> tuple[str, str] | None:
    if counts.fatal:
        return "PodFailurePolicy", counts.fatal
    limit, most = job.backoff_limit, job.spec.max_failed_indexes
    if most is not None and len(counts.failed_indexes) > most:
        return (
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        )
    ended = len(counts.completed) + len(counts.failed_indexes)
    if counts.failed_indexes and ended >= (job.completions or 0):
        return "FailedIndexes", "Job has failed indexes"
    restarts = sum(
        status.restart_count
        for pod in counts.active
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    )
    restarted = restarts > 0 if limit == 0 else restarts >= limit
    on_failure = (job.spec.template.get("spec") or {}).get("restartPolicy") == "OnFailure"
    if counts.failed > limit or (on_failure and restarted):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    deadline = _deadline(job, status)
    if deadline is not None and deadline <= now:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    return None


def _success(job: RawBatchJob, counts: PodCounts) -> tuple[str, str] | None:
    policy, completions = job.spec.success_policy, job.completions or 0
    if job.is_indexed and (rule := matched_success(policy, counts.completed, completions)):
        return "SuccessPolicy", rule
    if job.completions is None:
        done = counts.succeeded > 0 and not counts.active
    else:
        done = counts.succeeded >= job.completions
    reason = "CompletionsReached", "Reached expected number of succeeded pods"
    return reason if done else None


def _deadline(job: RawBatchJob, status: RawBatchJobStatus) -> datetime | None:
    seconds = job.spec.active_deadline_seconds
    if seconds is None or status.start_time is None or job.spec.suspend:
        return None
    return status.start_time + timedelta(seconds=seconds)


def _run_pods(job: RawBatchJob, counts: PodCounts, plan: JobPlan, now: datetime) -> JobPlan:
    """Delete surplus pods, and create missing ones unless a failure was too recent."""
    surplus = _invalid_indexes(job, counts) if job.is_indexed else []
    active = [pod for pod in counts.active if pod not in surplus]
    desired = _desired_active(job, counts, len(active))
    surplus += sorted(active, key=deletion_rank)[: max(0, len(active) - desired)]
    waiting = counts.terminating if job.spec.pod_replacement_policy == "Failed" else ()
    missing = min(desired - len(active) - len(waiting), MAX_CREATIONS)
    plan = replace(plan, withdraw=tuple(surplus))
    if missing <= 0 or surplus:
        return plan
    if counts.failures is not None:
        return _retry_indexes(job, counts, plan, (active, missing), now)
    held_until = plan.backoff.next_creation
    if held_until is not None and held_until > now:
        return replace(plan, requeue_at=min(filter(None, (plan.requeue_at, held_until))))
    return replace(plan, create=_new_indexes(job, counts, active, missing))


def _desired_active(job: RawBatchJob, counts: PodCounts, active: int) -> int:
    if job.completions is not None:
        left = job.completions - counts.succeeded - len(counts.failed_indexes)
        return max(0, min(job.parallelism, left))
    # One success of a work queue means that no work is left: the others end by themselves.
    return active if counts.succeeded else job.parallelism


def _retry_indexes(
    job: RawBatchJob, counts: PodCounts, plan: JobPlan, wanted: tuple[list[Pod], int], now: datetime
) -> JobPlan:
    """Create missing pods of a Job whose indexes have delays of their own."""
    (active, missing), failures = wanted, counts.failures
    assert failures is not None
    ready: list[int | None] = []
    requeue_at = plan.requeue_at
    for index in _new_indexes(job, counts, active, job.completions or 0):
        assert index is not None
        last = failures.last.get(index)
        at = (finish_time(last) or now) if last is not None else None
        record = BackoffRecord(failures.counts.get(index, 0), at)
        if record.failures and record.next_creation is not None and record.next_creation > now:
            requeue_at = min(filter(None, (requeue_at, record.next_creation)))
        elif len(ready) < missing:
            ready.append(index)
    return replace(plan, create=tuple(ready), requeue_at=requeue_at)


def _new_indexes(
    job: RawBatchJob, counts: PodCounts, active: Sequence[Pod], missing: int
) -> tuple[int | None, ...]:
    if not job.is_indexed:
        return (None,) * missing
    taken = counts.completed | counts.failed_indexes | {index_of(pod) for pod in active}
    if job.spec.pod_replacement_policy == "Failed":
        taken |= {index_of(pod) for pod in counts.terminating}
    free = (index for index in range(job.completions or 0) if index not in taken)
    return tuple(islice(free, missing))


def _invalid_indexes(job: RawBatchJob, counts: PodCounts) -> list[Pod]:
    """Return pods without an index of the Job, with a completed one, or with that of another."""
    taken: set[int] = {*counts.completed, *counts.failed_indexes}
    invalid = []
    for pod in sorted(counts.active, key=deletion_rank, reverse=True):
        index = index_of(pod)
        if index is None or index >= (job.completions or 0) or index in taken:
            invalid.append(pod)
        else:
            taken.add(index)
    return invalid


def _with(
    status: RawBatchJobStatus, now: datetime, type_: str, value: str, reason: str, message: str
) -> RawBatchJobStatus:
    condition = Condition(type=type_, status=value, reason=reason, message=message)
    conditions = set_condition(status.conditions, condition, now)
    return msgspec.structs.replace(status, conditions=conditions)


def _noted(plan: JobPlan, type_: str, reason: str, message: str) -> JobPlan:
    return replace(plan, events=(*plan.events, JobPlanEvent(type_, reason, message)))
