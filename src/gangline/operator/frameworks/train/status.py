"""Status fields and failure policies of TrainJobs.

Upstream's conditions are Suspended, Complete and Failed. Its Python client takes a job with any
other condition, and one with ``Suspended=False``, for one that has not started. So these three are
all that ``status.conditions`` has; the engine's own are in ``status.gangline``.

Of both policies the first rule that applies counts. A pod without a rule of the pod failure policy
(of a batch Job) is replaced, which counts as a restart. With restarts of all pods the first failed
pod fails its replicated job (of a JobSet), up to ``maxRestarts``: ranks of a collective do not
survive each other, so a ``backoffLimit`` would only delay the restart.
"""

from collections.abc import Iterable

import msgspec

from gangline.api.job_names import is_interrupted
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.jobs.train import COMPLETE, FAILED, STATUS_FIELD, SUSPENDED
from gangline.api.jobs.training_runtime import (
    BACKOFF_LIMIT_EXCEEDED,
    BY_POD_FAILURE_POLICY,
    FAIL_JOB,
    FAIL_SET,
    IN,
    RESTART_SET,
    RESTART_SET_FREELY,
    ExitCodeRequirement,
    PodFailureRule,
    SetFailurePolicy,
    runtime_copy_name,
)
from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.meta.objects import Condition
from gangline.api.trainer.effective import EffectiveJob, EffectiveRole, find_container
from gangline.operator.model import conditions
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.replicas import ObservedPod, ReplicaGang


def rules_end_job(rules: Iterable[PodFailureRule], pod: ObservedPod) -> bool:
    first = next((rule for rule in rules if _applies(rule, pod)), None)
    return first is not None and first.action == FAIL_JOB


def _applies(rule: PodFailureRule, pod: ObservedPod) -> bool:
    if rule.on_exit_codes is not None:
        return _has_exit_code(rule.on_exit_codes, pod)
    return any(
        (condition.type, condition.status) == (pattern.type, pattern.status)
        for pattern in rule.on_pod_conditions
        for condition in pod.status.conditions
    )


def _has_exit_code(requirement: ExitCodeRequirement, pod: ObservedPod) -> bool:
    """Return whether a container ended with such a code; a success never counts."""
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = status.state.terminated
        if ended is None or not ended.exit_code:
            continue
        if requirement.container_name not in ("", status.name):
            continue
        if (ended.exit_code in requirement.values) == (requirement.operator == IN):
            return True
    return False


NOT_SUPPORTED = "TrainingRuntimeNotSupported"
DEADLINE_EXCEEDED = "DeadlineExceeded"
ALL_COMPLETED = "AllJobsCompleted"
FAILED_JOBS = "FailedJobs"

_PHASES = (
    (conditions.SUCCEEDED, "Succeeded"),
    (conditions.FAILED, "Failed"),
    (conditions.RESTARTING, "Restarting"),
    (conditions.RUNNING, "Running"),
)
_REASONS = (
    conditions.FAILED,
    conditions.INVALID_SPEC,
    conditions.STALLED,
    conditions.RESTARTING,
)


def train_status_fields(
    job: NormalizedJob, merged: EffectiveJob | None, gang: ReplicaGang, status: JobStatus
) -> Manifest:
    """Return upstream's fields, and those of ours that the common status lacks.

    ``merged`` is None for a job without a runtime.
    """
    own: Manifest = {"phase": _phase(merged, gang, status)}
    if message := _message(status):
        own["message"] = message
    if merged is not None:
        own["effective"] = runtime_copy_name(job.name)
        own["roles"] = {role.name: _summary(role) for role in merged.roles}
        pods = (pod for role in merged.training_roles for pod in gang[role.name].present)
        if ready := sum(map(_is_ready, pods)):
            own["nodesReady"] = ready
        if bounds := merged.elastic:
            own["nodeRange"] = {"minNodes": bounds.min_nodes, "maxNodes": bounds.max_nodes}
    fields: Manifest = {STATUS_FIELD: own}
    if listed := _upstream_conditions(job, merged, gang, status):
        fields["conditions"] = msgspec.to_builtins(listed)
    if merged is not None:
        fields["jobsStatus"] = [_step(merged, role, gang, status) for role in merged.roles]
    return fields


def _upstream_conditions(
    job: NormalizedJob, merged: EffectiveJob | None, gang: ReplicaGang, status: JobStatus
) -> list[Condition]:
    names = (
        (conditions.SUSPENDED, SUSPENDED, SUSPENDED),
        (conditions.SUCCEEDED, COMPLETE, ALL_COMPLETED),
        (conditions.FAILED, FAILED, _failure_reason(job, merged, status)),
    )
    translated = []
    for ours, theirs, reason in names:
        condition = find_condition(status.conditions, ours)
        if condition is None or condition.status != "True":
            continue
        if ours == conditions.SUSPENDED and (gang.pods or gang.surplus):
            continue  # suspended means that no pod is left
        translated.append(
            msgspec.structs.replace(condition, type=theirs, reason=reason, last_update_time=None)
        )
    return translated


def _failure_reason(job: NormalizedJob, merged: EffectiveJob | None, status: JobStatus) -> str:
    if merged is None:
        return NOT_SUPPORTED
    limit, start, end = job.policy.active_deadline, status.start_time, status.completion_time
    if limit and start and end and end - start >= limit:
        return DEADLINE_EXCEEDED
    return FAILED_JOBS


def _phase(merged: EffectiveJob | None, gang: ReplicaGang, status: JobStatus) -> str:
    current = status.conditions
    if is_condition_true(current, conditions.SUSPENDED):
        return "Suspending" if gang.pods or gang.surplus else "Suspended"
    for condition, phase in _PHASES:
        if is_condition_true(current, condition):
            return phase
    if merged is None or not gang.pods:
        return "Pending"
    if any(gang[role.name].active for role in merged.roles if role.is_initial):
        return "Initializing"
    return "Starting" if any(pod.spec.node_name for pod in gang.pods) else "Pending"


def _message(status: JobStatus) -> str:
    for name in _REASONS:
        condition = find_condition(status.conditions, name)
        if condition is not None and condition.status == "True":
            return condition.message
    return next((one.message for one in status.conditions if is_interrupted(one)), "")


def _step(
    merged: EffectiveJob, role: EffectiveRole, gang: ReplicaGang, status: JobStatus
) -> Manifest:
    """Count the batch Jobs that a JobSet would make of a replicated job.

    One without pods is ready, as in a JobSet: Kueue waits until all batch Jobs are.
    """
    slots = gang[role.name]
    counted = status.replica_statuses.get(role.name)
    finished = conditions.is_finished(status.conditions)
    suspended = is_condition_true(status.conditions, conditions.SUSPENDED)
    has_failed = is_condition_true(status.conditions, conditions.FAILED)
    needed = 1 if merged.is_elastic(role) else role.replicas
    all_done = finished and counted is not None and counted.succeeded >= needed
    done = range(role.replicas) if all_done else slots.completed
    step = dict.fromkeys(("ready", "succeeded", "failed", "active"), 0)
    for number in range(role.jobs):
        indexes = range(number * role.pods_per_job, (number + 1) * role.pods_per_job)
        pods = slots.pods[indexes.start : indexes.stop]
        succeeded = bool(indexes) and all(index in done for index in indexes)
        step["succeeded"] += succeeded
        step["ready"] += not (succeeded or finished or suspended) and all(map(_is_ready, pods))
        step["active"] += not finished and not succeeded and any(p and p.is_active for p in pods)
        step["failed"] += has_failed and not succeeded and any(p and p.failed for p in pods)
    if has_failed and counted and counted.failed and step["succeeded"] < role.jobs:
        step["failed"] = max(step["failed"], 1)  # the failed pods may be deleted already
    return {"name": role.name, **step, "suspended": role.jobs if suspended else 0}


def _is_ready(pod: ObservedPod | None) -> bool:
    return pod is not None and pod.is_ready and bool(pod.status.container_statuses)


def _summary(role: EffectiveRole) -> Manifest:
    """Return what lists of jobs show of a role."""
    container = find_container(role.template, role.container_name) or {}
    shown = {
        name: container[name] for name in ("name", "image", "resources") if container.get(name)
    }
    template = {"spec": {"containers": [shown]}} if shown else {}
    return {"replicas": role.replicas, **({"template": template} if template else {})}


def restarts_together(policy: SetFailurePolicy | None) -> bool:
    if policy is None:
        return False
    actions = {rule.action for rule in policy.rules}
    return bool(policy.max_restarts) or bool(actions & {RESTART_SET, RESTART_SET_FREELY})


def pod_ends_job(policy: SetFailurePolicy | None, role: EffectiveRole, pod: ObservedPod) -> bool:
    if policy is None or not restarts_together(policy):
        return rules_end_job(role.failure_rules, pod)
    return _action(policy, role, pod) == FAIL_SET


def is_counted(policy: SetFailurePolicy | None, role: EffectiveRole, pod: ObservedPod) -> bool:
    """Return whether the restart after a failure counts towards ``maxRestarts``."""
    return policy is None or _action(policy, role, pod) != RESTART_SET_FREELY


def _action(policy: SetFailurePolicy, role: EffectiveRole, pod: ObservedPod) -> str:
    by_policy = rules_end_job(role.failure_rules, pod)
    reason = BY_POD_FAILURE_POLICY if by_policy else BACKOFF_LIMIT_EXCEEDED
    for rule in policy.rules:
        if role.name not in (rule.target_replicated_jobs or (role.name,)):
            continue
        if reason in (rule.on_job_failure_reasons or (reason,)):
            return rule.action
    return RESTART_SET
