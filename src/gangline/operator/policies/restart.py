"""Whether a failed replica is replaced or ends the job.

Processes that fail inside a pod are restarted in place by the kubelet under Always and OnFailure;
what is judged here is a pod that has failed as a whole: evicted, lost with its node, or of a role
whose restart policy leaves restarts to us.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from gangline.operator.job import RestartPolicy
from gangline.operator.replicas import Pod

SIGNAL_BASE = 128
"""Codes above this say which signal killed the process: the platform's doing, so try again."""


class Judgement(StrEnum):
    """What a failed pod means."""

    REPLACE = "replace"
    FATAL = "fatal"


def _by_exit_code(code: int | None) -> Judgement:
    """Blame the code for codes 1 to 127, the platform for signals and for pods without a code."""
    return Judgement.FATAL if code is not None and code < SIGNAL_BASE else Judgement.REPLACE


_TABLE: Mapping[RestartPolicy, Callable[[int | None], Judgement]] = {
    RestartPolicy.ALWAYS: lambda _: Judgement.REPLACE,
    RestartPolicy.ON_FAILURE: lambda _: Judgement.REPLACE,
    RestartPolicy.NEVER: lambda _: Judgement.FATAL,
    RestartPolicy.EXIT_CODE: _by_exit_code,
}


def judge(policy: RestartPolicy, pod: Pod, container: str) -> Judgement:
    """Judge a failed pod, given the name of the container that trains."""
    return _TABLE[policy](pod.exit_code(container))


def pod_policy(policy: RestartPolicy) -> str:
    """Translate to the pod's own restart policy: the kubelet knows no exit codes."""
    return RestartPolicy.NEVER if policy is RestartPolicy.EXIT_CODE else policy


def describe(pod: Pod, container: str) -> str:
    """Say how a pod failed: ``digits-worker-1 exited with code 1 (Error)``."""
    if pod.status.reason:
        return f"{pod.name} failed: {pod.status.reason} {pod.status.message}".rstrip()
    code = pod.exit_code(container)
    if code is None:
        return f"{pod.name} failed"
    reasons = [
        status.state.terminated.reason
        for status in pod.status.container_statuses
        if status.state.terminated and status.state.terminated.exit_code == code
    ]
    reason = next((f" ({reason})" for reason in reasons if reason), "")
    return f"{pod.name} exited with code {code}{reason}"
