"""The status of a job after each transition, and the events about it.

Each function takes a status and returns the next one. Reasons and messages follow upstream's
patterns, with the details that a user needs in order to act.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from gangline.api.kubeflow import JobStatus, ReplicaStatus
from gangline.api.meta import Condition
from gangline.operator import conditions, labels
from gangline.operator.decision import Event
from gangline.operator.indexes import write
from gangline.operator.job import CleanPodPolicy, TrainingJob
from gangline.operator.policies import pace
from gangline.operator.replicas import Gang

_NAMED_PODS = 5
"""Number of pods that a message names."""

_TOLD = {
    conditions.RESTARTING: True,
    conditions.SUSPENDED: False,
    conditions.SUCCEEDED: False,
    conditions.FAILED: True,
    conditions.INVALID_SPEC: True,
    conditions.STALLED: True,
}
"""Conditions that emit an event when they become True, and whether it is a warning."""


def started(job: TrainingJob, status: JobStatus, now: datetime) -> JobStatus:
    """The job may run: created, valid, and started or resumed."""
    current = _created(job, status.conditions, now)
    resumed = f"{job.kind.kind} {job.name} is resumed."
    current = conditions.assert_false(
        current, conditions.SUSPENDED, _reason(job, "Resumed"), resumed, now
    )
    current = conditions.drop(current, conditions.INVALID_SPEC)
    return replace(status, conditions=current, start_time=status.start_time or now)


def invalid(job: TrainingJob, status: JobStatus, mistakes: str, now: datetime) -> JobStatus:
    current = _created(job, status.conditions, now)
    current = conditions.assert_true(
        current, conditions.INVALID_SPEC, _reason(job, "Invalid"), mistakes, now
    )
    return replace(status, conditions=current)


def suspended(job: TrainingJob, status: JobStatus, now: datetime) -> JobStatus:
    """The job is suspended: it has no pods, and its start time is set again on resume."""
    reason = _reason(job, "Suspended")
    message = f"{job.kind.kind} {job.name} is suspended."
    current = _created(job, status.conditions, now)
    current = conditions.drop(current, conditions.RESTARTING)
    current = conditions.drop(current, conditions.STALLED)
    current = conditions.drop(current, conditions.INVALID_SPEC)
    current = conditions.assert_false(current, conditions.RUNNING, reason, message, now)
    current = conditions.assert_true(current, conditions.SUSPENDED, reason, message, now)
    return replace(
        status,
        conditions=current,
        start_time=None,
        replica_statuses={role.name: ReplicaStatus() for role in job.roles},
    )


def restarting(
    job: TrainingJob, status: JobStatus, role: str, failures: Sequence[str], now: datetime
) -> JobStatus:
    message = f"{job.kind.kind} {job.name} is restarting because {why_failed(role, failures)}"
    current = conditions.assert_true(
        status.conditions, conditions.RESTARTING, _reason(job, "Restarting"), message, now
    )
    return replace(status, conditions=current)


def restarting_together(
    job: TrainingJob, status: JobStatus, why: str, now: datetime, *, counted: bool
) -> JobStatus:
    """All replicas are being replaced; this is one restart, however many of them failed.

    Args:
        job: the job.
        status: its status.
        why: the reason of the restart.
        now: the time.
        counted: whether it counts as a restart after a failure.
    """
    record = replace(status.restarts, generation=status.restarts.generation + 1, pods={})
    if counted:
        record = pace.note(replace(record, total=record.total + 1), now)
    message = f"{job.kind.kind} {job.name} is restarting all replicas because {why}"
    current = conditions.assert_true(
        status.conditions, conditions.RESTARTING, _reason(job, "Restarting"), message, now
    )
    unfinished = {
        role: replace(count, completed_indexes="")
        for role, count in status.replica_statuses.items()
    }
    return replace(status, conditions=current, restarts=record, replica_statuses=unfinished)


def running(job: TrainingJob, status: JobStatus, now: datetime) -> JobStatus:
    message = f"{job.kind.kind} {job.meta.namespace}/{job.name} is running."
    current = conditions.assert_true(
        status.conditions, conditions.RUNNING, _reason(job, "Running"), message, now
    )
    return replace(status, conditions=current)


def succeeded(job: TrainingJob, status: JobStatus, now: datetime) -> JobStatus:
    """The job has succeeded. Replicas that still run count as succeeded, as in upstream."""
    message = f"{job.kind.kind} {job.meta.namespace}/{job.name} successfully completed."
    counts = {
        role: replace(count, active=0, succeeded=count.succeeded + count.active)
        for role, count in status.replica_statuses.items()
    }
    ended = _ended(status, conditions.SUCCEEDED, _reason(job, "Succeeded"), message, now)
    return replace(ended, replica_statuses=counts)


def failed(job: TrainingJob, status: JobStatus, why: str, now: datetime) -> JobStatus:
    """The job has failed. Replicas that clean-up deletes no longer count as active."""
    ended = _ended(status, conditions.FAILED, _reason(job, "Failed"), why, now)
    if job.policy.clean_after(failure=True) is CleanPodPolicy.NONE:
        return ended
    counts = {role: replace(count, active=0) for role, count in status.replica_statuses.items()}
    return replace(ended, replica_statuses=counts)


def stalled(job: TrainingJob, status: JobStatus, why: str, now: datetime) -> JobStatus:
    current = conditions.assert_true(
        status.conditions, conditions.STALLED, _reason(job, "Stalled"), why, now
    )
    return replace(status, conditions=current)


def counted(job: TrainingJob, status: JobStatus, gang: Gang) -> JobStatus:
    """Update the number of replicas in each state."""
    counts = {}
    for role in job.roles:
        slots = gang[role.name]
        counts[role.name] = ReplicaStatus(
            active=slots.active,
            succeeded=slots.succeeded,
            failed=slots.failed,
            selector=_selector(job, role.label),
            completed_indexes=write(slots.completed),
        )
    return replace(status, replica_statuses=counts)


def is_minor(before: JobStatus, after: JobStatus) -> bool:
    """Return whether a status change may be stored later.

    Created, the start time, replica counts and the removal of a counted pod can be computed again;
    ends, restarts and conditions that users were notified of cannot.
    """
    return _major(before) == _major(after) and (
        before.restarts.pods.items() >= after.restarts.pods.items()
    )


def is_start(before: JobStatus, after: JobStatus) -> bool:
    """Return whether the only major change is that the job runs for the first time."""
    if conditions.find(before.conditions, conditions.RESTARTING):
        return False
    current = conditions.drop(after.conditions, conditions.RUNNING)
    return is_minor(before, replace(after, conditions=current))


def _major(status: JobStatus) -> JobStatus:
    current = conditions.drop(status.conditions, conditions.CREATED)
    restarts = replace(status.restarts, pods={})
    return replace(
        status, conditions=current, replica_statuses={}, start_time=None, restarts=restarts
    )


def failure_message(job: TrainingJob, role: str, failures: Sequence[str]) -> str:
    """Return the message of a job that fails because of its replicas."""
    return f"{job.kind.kind} {job.name} is failed because {why_failed(role, failures)}"


def why_failed(role: str, failures: Sequence[str]) -> str:
    """Return the failed replicas of a role and how each failed."""
    named = "; ".join(failure.rstrip(".") for failure in failures[:_NAMED_PODS])
    more = len(failures) - _NAMED_PODS
    rest = f"; and {more} more" if more > 0 else ""
    return f"{len(failures)} {role} replica(s) failed: {named}{rest}."


def events(before: JobStatus, after: JobStatus) -> list[Event]:
    """List the events: conditions that became True, or are True for another reason."""
    emitted = []
    for condition in after.conditions:
        old = conditions.find(before.conditions, condition.type)
        if _says(condition) == _says(old) or condition.type not in _TOLD:
            continue
        if condition.status == conditions.TRUE:
            emitted.append(Event(condition.reason, condition.message, _TOLD[condition.type]))
        elif condition.type == conditions.SUSPENDED:
            emitted.append(Event(condition.reason, condition.message))
    return emitted


def _says(condition: Condition | None) -> tuple[str, str, str] | None:
    return (condition.status, condition.reason, condition.message) if condition else None


def _reason(job: TrainingJob, word: str) -> str:
    return f"{job.kind.kind}{word}"


def _created(job: TrainingJob, current: Sequence[Condition], now: datetime) -> list[Condition]:
    if conditions.find(current, conditions.CREATED):
        return list(current)
    message = f"{job.kind.kind} {job.name} is created."
    return conditions.assert_true(
        current, conditions.CREATED, _reason(job, "Created"), message, now
    )


def _ended(status: JobStatus, type_: str, reason: str, message: str, now: datetime) -> JobStatus:
    current = conditions.drop(status.conditions, conditions.STALLED)
    current = conditions.assert_true(current, type_, reason, message, now)
    return replace(status, conditions=current, completion_time=now)


def _selector(job: TrainingJob, role: str) -> str:
    wanted = {
        labels.JOB_NAME: job.name,
        labels.OPERATOR_NAME: job.kind.controller,
        labels.REPLICA_TYPE: role,
    }
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))
