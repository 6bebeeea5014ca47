"""A failure is data: what ended a pod or a process, who is to blame, what to do about it.

One table for all: the operator decides by it whether a replica is made anew, the agent whether to
start its processes again, and people read the same words in every place. Signals, the container
runtime's reasons and the node's reasons are looked up; exit codes that no table knows are the
program's own.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gangline.api.conditions import is_true
from gangline.api.meta import Condition
from gangline.api.pod import Pod
from gangline.api.podstatus import ContainerStateTerminated, ContainerStatus

NODE_FAULT = 203
"""The exit code with which an agent gives up its node."""

SIGNAL_BASE = 128
"""Exit codes above it name the signal that killed the process."""

DISRUPTED = "DisruptionTarget"
"""The pod condition that says the cluster itself is ending the pod, and why."""


class Blame(StrEnum):
    """Whose doing a failure is."""

    CODE = "code"
    """The program: it would fail again the same way, or only chance would save it."""
    USER = "user"
    """What was asked for: command, image, limits. Nothing but a change of the job helps."""
    NODE = "node"
    """The machine. Elsewhere it would have gone well."""
    PLATFORM = "platform"
    """The cluster: it took the pod away on purpose."""


class Remedy(StrEnum):
    """What to do."""

    RETRY = "retry"
    """Start it again, where it was."""
    MOVE = "move"
    """Start it again, on another node."""
    STOP = "stop"
    """Leave it: starting again cannot help."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a pod or process."""

    cause: str
    """One CamelCase word; stable, for programs."""
    blame: Blame
    remedy: Remedy
    explanation: str
    """What it means and what would help, for people."""
    exit_code: int | None = None
    message: str = ""
    """What the node or the process said itself."""

    @property
    def is_retryable(self) -> bool:
        """Whether starting again can help."""
        return self.remedy is not Remedy.STOP

    def __str__(self) -> str:
        """All of it in one line."""
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        said = f" It said: {self.message}" if self.message else ""
        return f"{self.cause}{code}: {self.explanation}{said}"


_CODE, _USER, _NODE, _PLATFORM = Blame.CODE, Blame.USER, Blame.NODE, Blame.PLATFORM
_RETRY, _MOVE, _STOP = Remedy.RETRY, Remedy.MOVE, Remedy.STOP

_BY_CODE: Mapping[int, Failure] = {
    1: Failure("Error", _CODE, _STOP, "The program failed; its log says why."),
    2: Failure("UsageError", _USER, _STOP, "The program did not understand its arguments."),
    126: Failure("NotExecutable", _USER, _STOP, "The command may not be executed."),
    127: Failure("CommandNotFound", _USER, _STOP, "The command does not exist in the image."),
    128: Failure("CannotStart", _USER, _STOP, "The container could not be started."),
    NODE_FAULT: Failure(
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
        "The process gave itself up: a failed check, or collective communication that hung.",
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
        "Killed", _PLATFORM, _RETRY, "The process was killed, perhaps for want of memory."
    ),
    signal.SIGSEGV: Failure(
        "SegmentationFault", _CODE, _RETRY, "The program touched memory that is not its own."
    ),
    signal.SIGPIPE: Failure("BrokenPipe", _CODE, _RETRY, "The other end of a pipe went away."),
    signal.SIGTERM: Failure("Terminated", _PLATFORM, _RETRY, "The process was told to end."),
    signal.SIGXCPU: Failure("CpuTimeExceeded", _USER, _STOP, "The process used up its cpu time."),
    signal.SIGXFSZ: Failure("FileTooLarge", _USER, _STOP, "A file grew beyond its limit."),
}

_BY_CONTAINER_REASON: Mapping[str, Failure] = {
    "OOMKilled": Failure(
        "OutOfMemory",
        _USER,
        _RETRY,
        "The container used more memory than its limit; raise the limit or use less.",
    ),
    "ContainerCannotRun": _BY_CODE[128],
    "StartError": _BY_CODE[128],
    "DeadlineExceeded": Failure(
        "DeadlineExceeded", _USER, _STOP, "The pod ran longer than activeDeadlineSeconds."
    ),
    "ContainerStatusUnknown": Failure(
        "NodeLost", _NODE, _MOVE, "The node went away while the container ran."
    ),
}

_BY_WAITING_REASON: Mapping[str, Failure] = {
    "ErrImagePull": Failure("ImagePullFailed", _USER, _RETRY, "The image could not be pulled."),
    "ImagePullBackOff": Failure("ImagePullFailed", _USER, _RETRY, "The image cannot be pulled."),
    "InvalidImageName": Failure("InvalidImageName", _USER, _STOP, "The image's name is none."),
    "ErrImageNeverPull": Failure(
        "ImageMissing", _USER, _MOVE, "The node has not the image and may not pull it."
    ),
    "CreateContainerConfigError": Failure(
        "ConfigMissing", _USER, _RETRY, "A ConfigMap, Secret or key that it needs is missing."
    ),
    "CreateContainerError": Failure(
        "CannotCreate", _NODE, _MOVE, "The node could not create the container."
    ),
    "RunContainerError": _BY_CODE[128],
    "CrashLoopBackOff": Failure(
        "CrashLoop", _CODE, _RETRY, "The container ends again and again soon after its start."
    ),
}

_BY_POD_REASON: Mapping[str, Failure] = {
    "Evicted": Failure(
        "Evicted", _NODE, _MOVE, "The node ran short of memory or disk and evicted the pod."
    ),
    "NodeLost": Failure("NodeLost", _NODE, _MOVE, "The node is not heard of any more."),
    "NodeShutdown": Failure("NodeShutdown", _NODE, _MOVE, "The node was shut down."),
    "Terminated": Failure("NodeShutdown", _NODE, _MOVE, "The node was shut down."),
    "Shutdown": Failure("NodeShutdown", _NODE, _MOVE, "The node was shut down."),
    "Preempting": Failure("Preempted", _PLATFORM, _MOVE, "The pod made room for another."),
    "DeadlineExceeded": _BY_CONTAINER_REASON["DeadlineExceeded"],
    "UnexpectedAdmissionError": Failure(
        "DeviceUnavailable", _NODE, _MOVE, "The node could not give the pod its devices."
    ),
    "NodeAffinity": Failure("NodeChanged", _NODE, _MOVE, "The node no longer fits the pod."),
    "NodePorts": Failure("PortInUse", _NODE, _MOVE, "A host port is in use on the node."),
}
_OUT_OF = Failure("NodeFull", _NODE, _MOVE, "The node had no room left when the pod came.")

_BY_DISRUPTION: Mapping[str, Failure] = {
    "PreemptionByScheduler": Failure(
        "Preempted", _PLATFORM, _MOVE, "The pod made room for one of higher priority."
    ),
    "DeletionByTaintManager": Failure(
        "NodeTainted", _NODE, _MOVE, "The node got a taint that the pod does not tolerate."
    ),
    "EvictionByEvictionAPI": Failure(
        "Drained", _PLATFORM, _MOVE, "Somebody asked for the pod to leave its node."
    ),
    "DeletionByPodGC": Failure("NodeLost", _NODE, _MOVE, "The pod's node does not exist any more."),
    "TerminationByKubelet": _BY_POD_REASON["Evicted"],
}
_UNKNOWN = Failure("Unknown", _NODE, _MOVE, "Nothing is known of how it ended.")


def of_exit(code: int, reason: str = "", message: str = "") -> Failure | None:
    """What an exit means; None for success.

    Args:
        code: the exit code; negative (as Python has it) or above 128 for a signal.
        reason: what the container runtime says, such as ``OOMKilled``.
        message: last words.
    """
    if code == 0 and reason not in _BY_CONTAINER_REASON:
        return None
    code = SIGNAL_BASE - code if code < 0 else code
    found = _BY_CONTAINER_REASON.get(reason) or _BY_CODE.get(code) or _of_signal(code)
    return replace(found, exit_code=code, message=message.strip())


def of_container(status: ContainerStatus) -> Failure | None:
    """What went wrong with a container; None while nothing has."""
    if status.state.terminated:
        return _of_terminated(status.state.terminated)
    waiting = status.state.waiting
    found = _BY_WAITING_REASON.get(waiting.reason) if waiting else None
    if waiting is None or found is None:
        return None
    last = status.last_state.terminated
    if waiting.reason == "CrashLoopBackOff" and last and (end := _of_terminated(last)):
        return replace(end, explanation=f"{found.explanation} {end.explanation}")
    return replace(found, message=waiting.message)


def of_pod(pod: Pod, container: str = "") -> Failure | None:
    """What went wrong with a pod; None while nothing has.

    What the cluster did to the pod comes before what its containers said in their fall.

    Args:
        pod: the pod.
        container: the container whose word counts, else the first that failed.
    """
    if found := _of_disruption(pod):
        return found
    statuses = [*pod.status.container_statuses, *pod.status.init_container_statuses]
    statuses.sort(key=lambda status: status.name != container)  # stable: the others keep order
    if found := next(filter(None, map(of_container, statuses)), None):
        return found
    return _UNKNOWN if pod.status.phase == "Failed" else None


def is_retryable_code(code: int | None) -> bool:
    """Whether ``restartPolicy: ExitCode`` makes a replica anew: from 128, and when unknown."""
    return code is None or code >= SIGNAL_BASE


def _of_disruption(pod: Pod) -> Failure | None:
    reason, message = pod.status.reason, pod.status.message
    if found := _BY_POD_REASON.get(reason):
        return replace(found, message=message)
    if reason.lower().startswith("outof"):
        return replace(_OUT_OF, message=message)
    if pod.status.phase != "Failed" or not is_true(pod.status.conditions, DISRUPTED):
        return None
    condition = _disruption(pod.status.conditions)
    found = _BY_DISRUPTION.get(condition.reason)
    return replace(found, message=condition.message) if found else None


def _disruption(conditions: list[Condition]) -> Condition:
    return next(each for each in conditions if each.type == DISRUPTED)


def _of_terminated(state: ContainerStateTerminated) -> Failure | None:
    code = SIGNAL_BASE + state.signal if state.signal and not state.exit_code else state.exit_code
    return of_exit(code, state.reason, state.message)


def _of_signal(code: int) -> Failure:
    number = code - SIGNAL_BASE
    if found := _BY_SIGNAL.get(number):
        return found
    if 0 < number < signal.NSIG:
        return Failure("Signalled", _CODE, _RETRY, f"Signal {number} ended the process.")
    remedy = _RETRY if code >= SIGNAL_BASE else _STOP
    return Failure("Error", _CODE, remedy, "The program failed; its log says why.")
