"""The failure policy of a JobSet: what the failure of a replicated job leads to.

With restarts of all pods the first failed pod fails its replicated job: ranks of a collective do
not survive each other, so a ``backoffLimit`` of the job would only delay the restart. The first
rule that applies counts. Without one all pods restart, up to ``maxRestarts``.
"""

from gangline.api.jobs.training_runtime import (
    BACKOFF_LIMIT_EXCEEDED,
    BY_POD_FAILURE_POLICY,
    FAIL_SET,
    RESTART_SET,
    RESTART_SET_FREELY,
    SetFailurePolicy,
)
from gangline.api.trainer.effective import EffectiveRole
from gangline.operator.frameworks.train import pod_failure
from gangline.operator.model.replicas import ObservedPod


def restarts_together(policy: SetFailurePolicy | None) -> bool:
    """Return whether a failure may restart all pods."""
    if policy is None:
        return False
    actions = {rule.action for rule in policy.rules}
    return bool(policy.max_restarts) or bool(actions & {RESTART_SET, RESTART_SET_FREELY})


def ends_job(policy: SetFailurePolicy | None, role: EffectiveRole, pod: ObservedPod) -> bool:
    """Return whether a failed pod ends the TrainJob."""
    if policy is None or not restarts_together(policy):
        return pod_failure.ends_job(role.failure_rules, pod)
    return _action(policy, role, pod) == FAIL_SET


def is_counted(policy: SetFailurePolicy | None, role: EffectiveRole, pod: ObservedPod) -> bool:
    """Return whether the restart after a failure counts towards ``maxRestarts``."""
    return policy is None or _action(policy, role, pod) != RESTART_SET_FREELY


def _action(policy: SetFailurePolicy, role: EffectiveRole, pod: ObservedPod) -> str:
    by_policy = pod_failure.ends_job(role.failure_rules, pod)
    reason = BY_POD_FAILURE_POLICY if by_policy else BACKOFF_LIMIT_EXCEEDED
    for rule in policy.rules:
        if role.name not in (rule.target_replicated_jobs or (role.name,)):
            continue
        if reason in (rule.on_job_failure_reasons or (reason,)):
            return rule.action
    return RESTART_SET
