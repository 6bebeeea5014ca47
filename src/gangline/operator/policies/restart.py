"""Whether a failed replica is replaced or ends the job.

Under Always and OnFailure the kubelet restarts failed processes in place. This policy applies to a
pod that has failed completely: evicted, lost with its node, or of a role whose restart policy
leaves restarts to the operator.
"""

from collections.abc import Callable, Iterable, Mapping
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


def _by_exit_code(code: int | None) -> FailureAction:
    """Codes 1 to 127 are errors of the program; signals and pods without a code are retried."""
    return FailureAction.REPLACE if failure.is_retryable_exit_code(code) else FailureAction.FATAL


_ACTIONS: Mapping[RestartPolicy, Callable[[int | None], FailureAction]] = {
    RestartPolicy.ALWAYS: lambda _: FailureAction.REPLACE,
    RestartPolicy.ON_FAILURE: lambda _: FailureAction.REPLACE,
    RestartPolicy.NEVER: lambda _: FailureAction.FATAL,
    RestartPolicy.EXIT_CODE: _by_exit_code,
}


def failure_action(policy: RestartPolicy, pod: ObservedPod, container: str) -> FailureAction:
    """Return the action for a failed pod, given the name of the main container."""
    ended = pod.termination_of(container)
    return _ACTIONS[policy](ended.exit_code if ended else None)


def is_refused(pod: ObservedPod) -> bool:
    """Return whether a failed pod was refused by its node: it is replaced under every policy."""
    return pod.failed and failure.is_node_refusal(pod.status.reason)


def pod_policy(policy: RestartPolicy) -> str:
    """Return the pod's own restart policy: the kubelet has no policy by exit code."""
    return RestartPolicy.NEVER if policy is RestartPolicy.EXIT_CODE else policy


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
