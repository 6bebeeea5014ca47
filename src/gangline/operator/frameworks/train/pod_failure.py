"""The pod failure policy of a batch Job: which failures end a TrainJob.

As in Kubernetes: the first rule that applies to a failed pod counts, and a pod without one is
replaced, which counts as a restart.
"""

from collections.abc import Iterable

from gangline.api.jobs.training_runtime import (
    FAIL_JOB,
    IN,
    ExitCodeRequirement,
    PodFailureRule,
)
from gangline.operator.model.replicas import ObservedPod


def ends_job(rules: Iterable[PodFailureRule], pod: ObservedPod) -> bool:
    """Return whether the rule for a failed pod ends the job."""
    found = next((rule for rule in rules if _applies(rule, pod)), None)
    return found is not None and found.action == FAIL_JOB


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
