"""Classification of failures: what ended a pod or process, what caused it, and what to do.

One set of tables serves all parts: the operator decides by it whether to recreate a replica, the
agent whether to restart its processes, and users see the same explanation everywhere. The tables
are keyed by signal, exit code, container reason and pod reason. An exit code that is in no table
is the program's own.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStateTerminated, ContainerStatus
from gangline.api.meta.conditions import TRUE, find_condition
from gangline.api.meta.objects import Condition

NODE_LOST = "NodeLost"
"""Cause of a failure whose node stopped, or does not report."""

NODE_FAULT_EXIT_CODE = 203
"""Exit code of an agent that gives up its node."""

SIGNAL_BASE = 128
"""Exit codes above this one mean: killed by signal (code - 128)."""

DISRUPTION_TARGET = "DisruptionTarget"
"""Type of the pod condition that is set when the cluster itself ends the pod."""

PREEMPTION_BY_SCHEDULER = "PreemptionByScheduler"
"""Reason of that condition for a preempted pod."""

PREEMPTED_CONDITION = "gangline.dev/Preempted"
"""Type of a copy of that condition: the eviction API overwrites the original."""


class Blame(StrEnum):
    """What caused a failure."""

    CODE = "code"
    """The program: it would probably fail again in the same way."""
    USER = "user"
    """The job's specification: command, image, limits. Only a change of the job helps."""
    NODE = "node"
    """The machine. The program would have worked on another node."""
    PLATFORM = "platform"
    """The cluster: it ended the pod on purpose."""


class Remedy(StrEnum):
    """What to do."""

    RETRY = "retry"
    """Restart it on the same node."""
    MOVE = "move"
    """Restart it on another node."""
    STOP = "stop"
    """Do not restart it: a restart cannot help."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod or process ended."""

    cause: str
    """One CamelCase word; stable, for programs."""
    blame: Blame
    remedy: Remedy
    explanation: str
    """What the cause means and what would help, for users."""
    exit_code: int | None = None
    message: str = ""
    """The message of the node or the process itself."""

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        message = f" Message: {self.message}" if self.message else ""
        return f"{self.cause}{code}: {self.explanation}{message}"


_CODE, _USER, _NODE, _PLATFORM = Blame.CODE, Blame.USER, Blame.NODE, Blame.PLATFORM
_RETRY, _MOVE, _STOP = Remedy.RETRY, Remedy.MOVE, Remedy.STOP

_CANNOT_START = Failure("CannotStart", _USER, _STOP, "The container could not be started.")
"""Only by the reason of the runtime: programs such as git exit with 128 themselves."""

_BY_CODE: Mapping[int, Failure] = {
    1: Failure("Error", _CODE, _STOP, "The program failed; its log says why."),
    2: Failure("UsageError", _USER, _STOP, "The program did not understand its arguments."),
    126: Failure("NotExecutable", _USER, _STOP, "The command may not be executed."),
    127: Failure("CommandNotFound", _USER, _STOP, "The command does not exist in the image."),
    NODE_FAULT_EXIT_CODE: Failure(
        "NodeFault", _NODE, _MOVE, "The agent found the node unfit; its log says why."
    ),
    255: Failure("Error", _CODE, _RETRY, "The program ended with -1; its log says why."),
}

_BY_SIGNAL: Mapping[int, Failure] = {
    signal.SIGHUP: Failure("Hangup", _PLATFORM, _RETRY, "The process lost its terminal."),
    signal.SIGINT: Failure("Interrupted", _PLATFORM, _RETRY, "The process was interrupted."),
    signal.SIGILL: Failure(
        "IllegalInstruction", _NODE, _MOVE, "The node's processor lacks an instruction."
    ),
    signal.SIGABRT: Failure(
        "Aborted",
        _CODE,
        _RETRY,
        "The process aborted: a failed check, or collective communication that hung.",
    ),
    signal.SIGBUS: Failure(
        "BusError",
        _USER,
        _RETRY,
        "Memory could not be mapped; /dev/shm is often too small: mount a larger emptyDir of "
        "medium Memory there.",
    ),
    signal.SIGFPE: Failure("ArithmeticError", _CODE, _RETRY, "A calculation had no result."),
    signal.SIGKILL: Failure(
        "Killed", _PLATFORM, _RETRY, "The process was killed, perhaps because memory was short."
    ),
    signal.SIGSEGV: Failure(
        "SegmentationFault", _CODE, _RETRY, "The program touched memory that is not its own."
    ),
    signal.SIGPIPE: Failure("BrokenPipe", _CODE, _RETRY, "The other end of a pipe was closed."),
    signal.SIGTERM: Failure("Terminated", _PLATFORM, _RETRY, "The process was asked to end."),
    signal.SIGXCPU: Failure("CpuTimeExceeded", _USER, _STOP, "The process used up its cpu time."),
    signal.SIGXFSZ: Failure("FileTooLarge", _USER, _STOP, "A file grew beyond its limit."),
}

_NODE_RESTARTED = Failure(
    NODE_LOST, _NODE, _MOVE, "The node stopped or restarted while the container ran."
)

_BY_CONTAINER_REASON: Mapping[str, Failure] = {
    "OOMKilled": Failure(
        "OutOfMemory",
        _USER,
        _RETRY,
        "The container used more memory than its limit; raise the limit or use less.",
    ),
    "ContainerCannotRun": _CANNOT_START,
    "StartError": _CANNOT_START,
    "DeadlineExceeded": Failure(
        "DeadlineExceeded", _USER, _STOP, "The pod ran longer than activeDeadlineSeconds."
    ),
    "ContainerStatusUnknown": _NODE_RESTARTED,
}

ENDS_AGAIN = "The container ends again and again soon after its start."
"""The explanation of a container that the kubelet restarts, in front of that of its exit."""
_BY_WAITING_REASON: Mapping[str, Failure] = {
    "ErrImagePull": Failure("ImagePullFailed", _USER, _RETRY, "The image could not be pulled."),
    "ImagePullBackOff": Failure("ImagePullFailed", _USER, _RETRY, "The image cannot be pulled."),
    "InvalidImageName": Failure(
        "InvalidImageName", _USER, _STOP, "The name of the image is invalid."
    ),
    "ErrImageNeverPull": Failure(
        "ImageMissing", _USER, _MOVE, "The node does not have the image and may not pull it."
    ),
    "CreateContainerConfigError": Failure(
        "ConfigMissing", _USER, _RETRY, "A ConfigMap, Secret or key that it needs is missing."
    ),
    "CreateContainerError": Failure(
        "CannotCreate", _NODE, _MOVE, "The node could not create the container."
    ),
    "RunContainerError": _CANNOT_START,
    "CrashLoopBackOff": Failure("CrashLoop", _CODE, _RETRY, ENDS_AGAIN),
}

_BY_POD_REASON: Mapping[str, Failure] = {
    "Evicted": Failure(
        "Evicted", _NODE, _MOVE, "The node ran short of memory or disk and evicted the pod."
    ),
    "NodeLost": Failure("NodeLost", _NODE, _MOVE, "The node no longer reports."),
    "NodeShutdown": Failure("NodeShutdown", _NODE, _MOVE, "The node was shut down."),
    "Terminated": Failure("NodeShutdown", _NODE, _MOVE, "The node was shut down."),
    "Shutdown": Failure("NodeShutdown", _NODE, _MOVE, "The node was shut down."),
    "Preempting": Failure("Preempted", _PLATFORM, _MOVE, "The pod was preempted by another."),
    "DeadlineExceeded": _BY_CONTAINER_REASON["DeadlineExceeded"],
    "UnexpectedAdmissionError": Failure(
        "DeviceUnavailable", _NODE, _MOVE, "The node could not give the pod its devices."
    ),
    "NodeAffinity": Failure("NodeChanged", _NODE, _MOVE, "The node no longer fits the pod."),
    "NodePorts": Failure("PortInUse", _NODE, _MOVE, "A host port is in use on the node."),
}
_NODE_FULL = Failure(
    "NodeFull", _NODE, _MOVE, "The node had no free resources when the pod arrived."
)

DEVICE_OUT_OF_MEMORY = "DeviceOutOfMemory"
"""Cause of a worker that ran out of the memory of its accelerator, as agents name it."""

NODE_REFUSALS = frozenset(
    {
        "UnexpectedAdmissionError",
        "UnexpectedPredicateFailureType",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TopologyAffinityError",
    }
)
"""Reasons of pods that the kubelet did not admit, besides those that begin with ``OutOf``."""

_BY_DISRUPTION: Mapping[str, Failure] = {
    PREEMPTION_BY_SCHEDULER: Failure(
        "Preempted", _PLATFORM, _MOVE, "The pod was preempted by one of higher priority."
    ),
    "DeletionByTaintManager": Failure(
        "NodeTainted", _NODE, _MOVE, "The node got a taint that the pod does not tolerate."
    ),
    "EvictionByEvictionAPI": Failure(
        "Drained", _PLATFORM, _MOVE, "The pod was evicted through the eviction API."
    ),
    "DeletionByPodGC": Failure("NodeLost", _NODE, _MOVE, "The pod's node no longer exists."),
    "TerminationByKubelet": _BY_POD_REASON["Evicted"],
}
_TABLES = (_BY_CODE, _BY_SIGNAL, _BY_CONTAINER_REASON, _BY_WAITING_REASON, _BY_POD_REASON)
_NODE_CAUSES = frozenset(
    failure.cause for table in _TABLES for failure in table.values() if failure.blame is _NODE
)
_BLAME: Mapping[str, Blame] = {
    failure.cause: failure.blame
    for table in (*_TABLES, _BY_DISRUPTION, {"": _NODE_FULL})
    for failure in table.values()
} | {"Signalled": _CODE}
AGENT_CAUSES: Mapping[str, Blame] = {
    "Hang": _CODE,
    "Stopped": _PLATFORM,
    "EndedEarly": _CODE,
    "CannotImport": _CODE,
    "DeviceBroken": _NODE,
    DEVICE_OUT_OF_MEMORY: _USER,
    "DiskFull": _NODE,
    "PeerLost": _PLATFORM,
}
"""What the causes blame that only agents find: ranks that hang, and messages of exceptions."""
_UNKNOWN = Failure("Unknown", _NODE, _MOVE, "How it ended is unknown.")


_EXIT_CODE_AFTER_REBOOT = 255
"""With the reason ``Unknown``: containerd found the container gone when it started."""


def failure_of_exit(code: int, reason: str = "", message: str = "") -> Failure | None:
    """Classify an exit code, negative or above 128 for a signal; None for success."""
    if code == 0 and reason not in _BY_CONTAINER_REASON:
        return None
    code = SIGNAL_BASE - code if code < 0 else code
    failure = _BY_CONTAINER_REASON.get(reason) or _BY_CODE.get(code) or _signal_failure(code)
    if (code, reason) == (_EXIT_CODE_AFTER_REBOOT, "Unknown"):
        failure = _NODE_RESTARTED
    return replace(failure, exit_code=code, message=message.strip())


def failure_of_container(status: ContainerStatus) -> Failure | None:
    """Classify the failure of a container; None if it has not failed."""
    if status.state.terminated:
        return _terminated_failure(status.state.terminated)
    waiting = status.state.waiting
    failure = _BY_WAITING_REASON.get(waiting.reason) if waiting else None
    if waiting is None or failure is None:
        return None
    last = status.last_state.terminated
    if waiting.reason == "CrashLoopBackOff" and last and (end := _terminated_failure(last)):
        return replace(end, explanation=f"{failure.explanation} {end.explanation}")
    return replace(failure, message=waiting.message)


def failure_of_pod(pod: Pod, container: str = "") -> Failure | None:
    """Classify the failure of a pod, of ``container`` first; None if it has not failed.

    A disruption by the cluster takes precedence over the exit codes of the containers, which follow
    from it.
    """
    if failure := _disruption_failure(pod):
        return failure
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    statuses.sort(key=lambda status: status.name != container)  # stable: the others keep order
    if failure := next(filter(None, map(failure_of_container, statuses)), None):
        return failure
    return _UNKNOWN if pod.status.phase == "Failed" else None


def find_disruption(conditions: Sequence[Condition]) -> Condition | None:
    """Return the condition that says why the cluster itself ends a pod; None if it does not."""
    for type_ in (PREEMPTED_CONDITION, DISRUPTION_TARGET):
        condition = find_condition(conditions, type_)
        if condition is not None and condition.status == TRUE:
            return condition
    return None


def is_node_refusal(reason: str) -> bool:
    """Return whether a pod's reason says that its node refused to start it.

    The program did not run, so neither it nor the job caused the failure.
    """
    return _is_node_full(reason) or reason in NODE_REFUSALS


def is_node_cause(cause: str) -> bool:
    """Whether a cause is a fault of the machine: the same program works on another one."""
    return cause in _NODE_CAUSES


def blame_of_cause(cause: str) -> Blame | None:
    """Return what a cause blames; None if it is not known how the program ended."""
    return _BLAME.get(cause) or AGENT_CAUSES.get(cause)


def is_retryable_exit_code(code: int | None) -> bool:
    """Whether ``restartPolicy: ExitCode`` recreates a replica: from 128 on, or if unknown."""
    return code is None or code >= SIGNAL_BASE


def _disruption_failure(pod: Pod) -> Failure | None:
    reason, message = pod.status.reason, pod.status.message
    if failure := _BY_POD_REASON.get(reason):
        return replace(failure, message=message)
    if _is_node_full(reason):
        return replace(_NODE_FULL, message=message)
    condition = find_disruption(pod.status.conditions)
    if pod.status.phase != "Failed" or condition is None:
        return None
    failure = _BY_DISRUPTION.get(condition.reason)
    return replace(failure, message=condition.message) if failure else None


def _is_node_full(reason: str) -> bool:
    """``OutOfcpu`` of Kubernetes before 1.22, ``OutOfpods``, ``OutOfnvidia.com/gpu``."""
    return reason.lower().startswith("outof")


def _terminated_failure(state: ContainerStateTerminated) -> Failure | None:
    code = SIGNAL_BASE + state.signal if state.signal and not state.exit_code else state.exit_code
    return failure_of_exit(code, state.reason, state.message)


def _signal_failure(code: int) -> Failure:
    number = code - SIGNAL_BASE
    if failure := _BY_SIGNAL.get(number):
        return failure
    if 0 < number < signal.NSIG:
        return Failure("Signalled", _CODE, _RETRY, f"Signal {number} ended the process.")
    remedy = _RETRY if code >= SIGNAL_BASE else _STOP
    return Failure("Error", _CODE, remedy, "The program failed; its log says why.")
