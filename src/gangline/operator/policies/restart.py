"""Whether a failed replica is replaced or ends the job.

Under Always and OnFailure the kubelet restarts failed processes in place. This policy applies to a
pod that has failed completely: evicted, lost with its node, or of a role whose restart policy
leaves restarts to the operator.
"""

from collections.abc import Iterable
from enum import StrEnum
from math import inf

import msgspec

from gangline.api import failure
from gangline.api.core.pod import Pod
from gangline.api.verdict import Finding, finding_of_pod
from gangline.operator.model.job import RestartPolicy
from gangline.operator.model.replicas import ObservedPod


class FailureAction(StrEnum):
    REPLACE = "replace"
    FATAL = "fatal"


def failure_action(policy: RestartPolicy, pod: ObservedPod, container: str) -> FailureAction:
    """Return the action for a failed pod, given the name of the main container.

    Of exit codes, 1 to 127 are errors of the program; signals and pods without a code are retried.
    """
    replaced = policy is not RestartPolicy.NEVER
    if policy is RestartPolicy.EXIT_CODE:
        ended = pod.termination_of(container)
        replaced = failure.is_retryable_exit_code(ended.exit_code if ended else None)
    return FailureAction.REPLACE if replaced else FailureAction.FATAL


def is_refused(pod: ObservedPod) -> bool:
    """Return whether a failed pod was refused by its node: it is replaced under every policy."""
    return pod.failed and failure.is_node_refusal(pod.status.reason)


def describe_pod_failure(pod: ObservedPod, container: str) -> str:
    """Return how a pod failed: ``digits-worker-1: OutOfMemory (exit code 137): ...``."""
    finding = failure_of(pod, container)
    return f"{pod.name}: {finding}" if finding else f"{pod.name} failed without a reason."


def failure_of(pod: ObservedPod, container: str) -> Finding | None:
    return finding_of_pod(msgspec.convert(msgspec.to_builtins(pod), Pod), container=container)


def by_cause(pods: Iterable[ObservedPod], container: str) -> list[ObservedPod]:
    """Sort failed pods so that the one that failed first, and by itself, leads."""

    def order(pod: ObservedPod) -> tuple[bool, bool, float, str]:
        finding = failure_of(pod, container)
        if finding is None:
            return True, True, 0.0, pod.name
        return (False, finding.consequence, finding.at.timestamp() if finding.at else inf, pod.name)

    return sorted(pods, key=order)
