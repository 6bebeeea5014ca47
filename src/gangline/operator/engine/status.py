"""The status of a job after each transition, the events about it, and its form in the API.

Each transition takes a status and returns the next one. Reasons and messages follow upstream's
patterns, with the details that a user needs in order to act. A kind whose clients would misread our
conditions stores the common status in a field of its own (``JobKindInfo.status_field``).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from gangline.api.job_names import AWAITS_FORMER_PODS, RUNS_AGAIN, is_interrupted
from gangline.api.jobs.kind import VERSION_ANNOTATION
from gangline.api.jobs.kubeflow import MANAGED_BY_US, JobStatus, ReplicaStatus
from gangline.api.jobs.progress import TrainerStatus
from gangline.api.meta.conditions import TRUE, find_condition, remove_condition
from gangline.api.meta.objects import Condition
from gangline.operator.model import conditions, labels
from gangline.operator.model.job import CleanPodPolicy, JobKindInfo, Manifest, NormalizedJob
from gangline.operator.model.plan import PlannedEvent, PlannedPatch, TargetKind
from gangline.operator.model.replicas import ReplicaGang, format_indexes
from gangline.operator.policies import backoff
from gangline.operator.policies.interruption import NOT_RUNNING, MissingPods, is_part_of


def remove_finalizers(job: NormalizedJob) -> tuple[PlannedPatch, ...]:
    """Remove the finalizers of an upstream operator that may not run any more."""
    present = job.meta.finalizers
    remaining = [name for name in present if name not in job.kind.finalizers]
    if len(remaining) == len(present):
        return ()
    path = "/metadata/finalizers"
    operations: list[Manifest] = [
        {"op": "test", "path": path, "value": list(present)},
        {"op": "replace", "path": path, "value": remaining},
    ]
    return (PlannedPatch(TargetKind.JOB, job.name, operations),)


def store_version(job: NormalizedJob) -> PlannedPatch | None:
    """Store the version in which a job was written, while the job still shows it."""
    several = bool(job.kind.entry.other_versions)
    ours = job.policy.managed_by in (None, MANAGED_BY_US)
    if not several or not ours or job.is_deleting or VERSION_ANNOTATION in job.meta.annotations:
        return None
    path = "/metadata/annotations"
    version: Manifest = {"path": path, "value": {VERSION_ANNOTATION: job.api_version}}
    if job.meta.annotations:
        path = labels.annotation_path(VERSION_ANNOTATION)
        version = {"path": path, "value": job.api_version}
    observed = job.meta.resource_version
    unchanged = {"op": "replace", "path": "/metadata/resourceVersion", "value": observed}
    return PlannedPatch(TargetKind.JOB, job.name, [unchanged, {"op": "add", **version}])


_STATUS = msgspec.json.Decoder(JobStatus)
_COMMON_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(JobStatus))
_PROGRESS = "trainerStatus"
"""The common field that is in the status itself for every kind: upstream's, for TrainJobs."""


def decode_status(kind: JobKindInfo, stored: msgspec.Raw) -> JobStatus:
    if not kind.status_field:
        return _STATUS.decode(stored)
    fields = msgspec.json.decode(stored, type=dict[str, msgspec.Raw])
    common = _STATUS.decode(fields.get(kind.status_field, b"{}"))
    if (progress := fields.get(_PROGRESS)) is None:
        return common
    return replace(common, trainer_status=msgspec.json.decode(progress, type=TrainerStatus))


def kind_fields(kind: JobKindInfo, stored: msgspec.Raw) -> Manifest:
    status: Manifest = msgspec.json.decode(stored)
    if not kind.status_field:
        return _own(status)
    status.pop(_PROGRESS, None)
    return {**status, kind.status_field: _own(status.get(kind.status_field) or {})}


def encode_status(kind: JobKindInfo, status: JobStatus, fields: Manifest) -> Any:
    if not kind.status_field:
        return {**fields, **msgspec.to_builtins(status)} if fields else status
    common = msgspec.to_builtins(status)
    progress = {_PROGRESS: common.pop(_PROGRESS)} if _PROGRESS in common else {}
    own = {kind.status_field: {**fields.get(kind.status_field, {}), **common}}
    return {**fields, **progress, **own}


def _own(status: Manifest) -> Manifest:
    return {name: value for name, value in status.items() if name not in _COMMON_FIELDS}


_BECAUSE = " because "
_SINCE = " since "
_PENDING = " Pending: "
_MAX_LISTED_PODS = 5
"""Number of pods that a message names."""

_EVENT_CONDITIONS = {
    conditions.RESTARTING: True,
    conditions.SUSPENDED: False,
    conditions.SUCCEEDED: False,
    conditions.FAILED: True,
    conditions.INVALID_SPEC: True,
    conditions.STALLED: True,
}
"""Conditions that emit an event when they become True, and whether it is a warning."""


def mark_started(job: NormalizedJob, status: JobStatus, now: datetime) -> JobStatus:
    """The job may run: created, valid, and started or resumed."""
    resumed = f"{job.kind.kind} {job.name} is resumed."
    current = conditions.set_condition_false(
        _with_created_condition(job, status.conditions, now),
        conditions.SUSPENDED,
        f"{job.kind.kind}Resumed",
        resumed,
        now,
    )
    return replace(status, conditions=current, start_time=status.start_time or now)


def mark_invalid(job: NormalizedJob, status: JobStatus, errors: str, now: datetime) -> JobStatus:
    current = _with_created_condition(job, status.conditions, now)
    current = _set_true(job, current, conditions.INVALID_SPEC, errors, now)
    return replace(status, conditions=current)


def mark_suspended(
    job: NormalizedJob, status: JobStatus, now: datetime, *, resumes: bool = False
) -> JobStatus:
    """The job has no pods. Its start time is set again on resume, and earlier failures delay no pod
    then.

    ``resumes``: the job is resumed, and waits until its former pods have ended.
    """
    state = AWAITS_FORMER_PODS if resumes else "is suspended"
    message = f"{job.kind.kind} {job.name} {state}."
    current = _with_created_condition(job, status.conditions, now)
    for type_ in (conditions.RESTARTING, conditions.STALLED):
        current = remove_condition(current, type_)
    current = conditions.set_condition_false(
        current, conditions.RUNNING, f"{job.kind.kind}Suspended", message, now
    )
    current = _set_true(job, current, conditions.SUSPENDED, message, now)
    return replace(
        status,
        conditions=current,
        start_time=None,
        replica_statuses={role.name: ReplicaStatus() for role in job.roles},
        restarts=replace(status.restarts, bursts=0, burst_start=None, ranks={}),
    )


def mark_restarting(
    job: NormalizedJob, status: JobStatus, role: str, failures: Sequence[str], now: datetime
) -> JobStatus:
    why = describe_failures(role, failures)
    message = f"{job.kind.kind} {job.name} is restarting{_BECAUSE}{why}"
    current = _set_true(job, status.conditions, conditions.RESTARTING, message, now)
    return replace(status, conditions=current)


def mark_gang_restarting(
    job: NormalizedJob,
    status: JobStatus,
    reason: str,
    now: datetime,
    *,
    failed: bool,
    counted: bool,
) -> JobStatus:
    """All replicas are being replaced: one restart, however many of them failed.

    Only a restart after a failure (``failed``) delays the next one; only a ``counted`` one counts
    towards the limit.
    """
    before = status.restarts
    record = replace(
        before, generation=before.generation + 1, pods={}, total=before.total + counted
    )
    if failed:
        record = backoff.record_gang_restart(record, now)
    message = f"{job.kind.kind} {job.name} is restarting all replicas{_BECAUSE}{reason}"
    unfinished = {
        role: replace(count, completed_indexes="")
        for role, count in status.replica_statuses.items()
    }
    current = _set_true(job, status.conditions, conditions.RESTARTING, message, now)
    return replace(status, conditions=current, restarts=record, replica_statuses=unfinished)


def mark_running(job: NormalizedJob, status: JobStatus, now: datetime) -> JobStatus:
    """The job runs. The reason of its last restart remains in the message."""
    name = f"{job.kind.kind} {job.meta.namespace}/{job.name}"
    message = f"{name} is running."
    restarting = find_condition(status.conditions, conditions.RESTARTING)
    running = find_condition(status.conditions, conditions.RUNNING)
    if restarting and restarting.status == TRUE:
        message = f"{name}{RUNS_AGAIN}{restarting.message.partition(_BECAUSE)[2]}"
    elif running and running.status == TRUE and RUNS_AGAIN in running.message:
        message = running.message
    current = _set_true(job, status.conditions, conditions.RUNNING, message, now)
    return replace(status, conditions=current)


def mark_interrupted(
    job: NormalizedJob,
    status: JobStatus,
    missing: MissingPods,
    now: datetime,
    *,
    runs: bool,
) -> JobStatus:
    """Pods of a job that ran are missing. Its other pods may be enough to run (``runs``)."""
    before = find_condition(status.conditions, conditions.RUNNING)
    since, cause, reason = f"{now:%Y-%m-%dT%H:%M:%SZ}", missing.cause, missing.reason
    if before is not None and is_interrupted(before):
        since = before.message.partition(_SINCE)[2].partition(_BECAUSE)[0]
        earlier = interruption_cause(before)
        if not cause or is_part_of(cause, earlier):
            cause, reason = earlier, before.reason.removeprefix(job.kind.kind)
    message = (
        f"{job.kind.kind} {job.meta.namespace}/{job.name} waits for {missing.count} of "
        f"{job.size} {'pod' if job.size == 1 else 'pods'}{_SINCE}{since}{_BECAUSE}"
        f"{cause or NOT_RUNNING}"
    )
    if missing.pending:
        message += f"{_PENDING}{missing.pending}"
    set_condition = conditions.set_condition_true if runs else conditions.set_condition_false
    current = set_condition(
        status.conditions, conditions.RUNNING, f"{job.kind.kind}{reason}", message, now
    )
    return replace(status, conditions=current)


def interruption_cause(condition: Condition) -> str:
    """Return why pods are missing, from the message of an interrupted job."""
    return condition.message.partition(_BECAUSE)[2].partition(_PENDING)[0]


def mark_succeeded(job: NormalizedJob, status: JobStatus, now: datetime) -> JobStatus:
    """The job has succeeded. Replicas that still run count as succeeded, as in upstream."""
    message = f"{job.kind.kind} {job.meta.namespace}/{job.name} successfully completed."
    counts = {
        role: replace(count, active=0, succeeded=count.succeeded + count.active)
        for role, count in status.replica_statuses.items()
    }
    ended = _mark_ended(job, status, conditions.SUCCEEDED, message, now)
    return replace(ended, replica_statuses=counts)


def mark_failed(job: NormalizedJob, status: JobStatus, message: str, now: datetime) -> JobStatus:
    """The job has failed. Replicas that clean-up deletes no longer count as active."""
    ended = _mark_ended(job, status, conditions.FAILED, message, now)
    if job.policy.clean_policy_after_end(failure=True) is CleanPodPolicy.NONE:
        return ended
    counts = {role: replace(count, active=0) for role, count in status.replica_statuses.items()}
    return replace(ended, replica_statuses=counts)


def mark_stalled(job: NormalizedJob, status: JobStatus, message: str, now: datetime) -> JobStatus:
    current = _set_true(job, status.conditions, conditions.STALLED, message, now)
    return replace(status, conditions=current)


def count_replicas(job: NormalizedJob, status: JobStatus, gang: ReplicaGang) -> JobStatus:
    counts = {}
    for role in job.roles:
        slots = gang[role.name]
        counts[role.name] = ReplicaStatus(
            active=slots.active,
            succeeded=slots.succeeded,
            failed=slots.failed,
            selector=_selector(job, role.label),
            completed_indexes=format_indexes(slots.completed),
        )
    return replace(status, replica_statuses=counts)


def is_minor_change(before: JobStatus, after: JobStatus) -> bool:
    """Return whether a status change may be stored later.

    Created, the start time, replica counts, the number of missing pods and the removal of a counted
    pod can be computed again; ends, restarts and conditions that users were notified of cannot.
    """
    if before.last_valid_spec is None:
        after = replace(after, last_valid_spec=None)
    return _without_minor_fields(before) == _without_minor_fields(after) and (
        before.restarts.pods.items() >= after.restarts.pods.items()
    )


def is_first_start(before: JobStatus, after: JobStatus) -> bool:
    """Return whether the only major change is that the job runs for the first time."""
    if find_condition(before.conditions, conditions.RESTARTING):
        return False
    current = remove_condition(after.conditions, conditions.RUNNING)
    return is_minor_change(before, replace(after, conditions=current))


def _without_minor_fields(status: JobStatus) -> JobStatus:
    current = [
        replace(condition, message="", last_update_time=None)
        if is_interrupted(condition)
        else condition
        for condition in remove_condition(status.conditions, conditions.CREATED)
    ]
    restarts = replace(status.restarts, pods={})
    return replace(
        status, conditions=current, replica_statuses={}, start_time=None, restarts=restarts
    )


def failure_message(job: NormalizedJob, role: str, failures: Sequence[str]) -> str:
    return f"{job.kind.kind} {job.name} is failed because {describe_failures(role, failures)}"


def describe_failures(role: str, failures: Sequence[str], event: str = "failed") -> str:
    """Return the replicas of a role that failed (or had another event), and how each did."""
    named = "; ".join(failure.rstrip(".") for failure in failures[:_MAX_LISTED_PODS])
    more = len(failures) - _MAX_LISTED_PODS
    rest = f"; and {more} more" if more > 0 else ""
    return f"{len(failures)} {role} replica(s) {event}: {named}{rest}."


def transition_events(before: JobStatus, after: JobStatus) -> list[PlannedEvent]:
    """List the events: conditions that became True, or are True for another reason."""
    emitted = []
    for condition in after.conditions:
        old = find_condition(before.conditions, condition.type)
        if condition.type == conditions.RUNNING and is_interrupted(condition):
            if old is None or interruption_cause(old) != interruption_cause(condition):
                emitted.append(PlannedEvent(condition.reason, condition.message, warning=True))
            continue
        if _essentials(condition) == _essentials(old) or condition.type not in _EVENT_CONDITIONS:
            continue
        if condition.status == TRUE:
            emitted.append(
                PlannedEvent(condition.reason, condition.message, _EVENT_CONDITIONS[condition.type])
            )
        elif condition.type == conditions.SUSPENDED:
            emitted.append(PlannedEvent(condition.reason, condition.message))
    return emitted


def _essentials(condition: Condition | None) -> tuple[str, str, str] | None:
    return (condition.status, condition.reason, condition.message) if condition else None


def _set_true(
    job: NormalizedJob, current: Sequence[Condition], type_: str, message: str, now: datetime
) -> list[Condition]:
    reason = f"{job.kind.kind}{type_.removesuffix('Spec')}"
    return conditions.set_condition_true(current, type_, reason, message, now)


def _with_created_condition(
    job: NormalizedJob, current: Sequence[Condition], now: datetime
) -> list[Condition]:
    if find_condition(current, conditions.CREATED):
        return list(current)
    message = f"{job.kind.kind} {job.name} is created."
    return _set_true(job, current, conditions.CREATED, message, now)


def _mark_ended(
    job: NormalizedJob, status: JobStatus, type_: str, message: str, now: datetime
) -> JobStatus:
    current = status.conditions
    for outdated in (conditions.STALLED, conditions.INVALID_SPEC):
        current = remove_condition(current, outdated)
    current = _set_true(job, current, type_, message, now)
    return replace(status, conditions=current, completion_time=now)


def _selector(job: NormalizedJob, role: str) -> str:
    selected = {
        labels.JOB_NAME: job.name,
        labels.OPERATOR_NAME: job.kind.controller,
        labels.REPLICA_TYPE: role,
    }
    return ",".join(f"{key}={value}" for key, value in sorted(selected.items()))
