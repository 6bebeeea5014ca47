"""The verdict about a failed replica: its cause, what shows it, and what would help.

The operator's conditions, the lists and waits of clients, and the diagnosis all use these
functions, so a failure has the same cause everywhere. The input is a pod, and the end of its log
where a client has read it. A pod's termination message serves as well: the operator has the kubelet
copy the end of the log into it.

1. The cluster's reason for ending a pod precedes what its program wrote while it ended.
2. A known line in a message or log is more precise than an exit code, and so is the report of an
   agent, which is read before the log of its workers.
3. The root is the earliest failure that is not a consequence of another one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gangline.api import failure
from gangline.api.agent_report import AgentReport, read_agent_report
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStateTerminated, ContainerStatus
from gangline.api.failure import Blame, Failure
from gangline.api.job_names import replica_name
from gangline.api.job_resources import MAIN_CONTAINERS
from gangline.api.meta.conditions import find_condition
from gangline.api.symptoms import find_symptom

MAX_EVIDENCE_LENGTH = 400
"""The number of characters of a line that is shown; lines of programs have no limit."""

_LATEST = datetime.max.replace(tzinfo=UTC)
_PROGRAM_FAILURES = frozenset(
    ("Error", "Aborted", "Unknown", "Signalled", "UsageError", "CrashLoop")
)
"""Causes that only state a bad exit of the program; its log is more precise."""
_STOPPED_FROM_OUTSIDE = frozenset(("Terminated", "Killed", "Interrupted", "Hangup"))
_PEER_LOST = "PeerLost"
_AMBIGUOUS_CAUSES = frozenset(("BusError", "BrokenPipe"))
_AGENT_VERDICTS = frozenset(("Hang", "Stopped", "EndedEarly"))
"""Causes that agents find by comparing ranks; the log of one replica is less precise."""
_LOG_IS_MORE_PRECISE = _PROGRAM_FAILURES | _STOPPED_FROM_OUTSIDE | _AMBIGUOUS_CAUSES

REMEDIES = {
    "OutOfMemory": "Raise --memory, or use less memory.",
    "Evicted": "Request the memory and disk that the job uses; nodes are then not overcommitted.",
    "Preempted": "Use a higher --priority, or let it run again: nothing is wrong with the job.",
    "NodeTainted": "Add --toleration, or have the node checked.",
    "NodeLost": "Have the node checked; with --retry the job continues on another node.",
    "NodeShutdown": "With --retry the job continues on another node.",
    "Drained": "With --retry the job continues on another node.",
    "NodeFull": "The job is scheduled again.",
    "NodeChanged": "The job is scheduled again.",
    "DeviceUnavailable": "Have the node's devices checked; the job is scheduled again.",
    "CommandNotFound": "Correct the command, or use an image that contains it.",
    "NotExecutable": "Make the file executable, or name its interpreter.",
    "CannotStart": "Correct the command, the working folder or the mounts.",
    "DeadlineExceeded": "Raise --running-timeout, or write checkpoints and resume.",
    "SegmentationFault": "Look for a broken native library; faulthandler shows the location.",
    "IllegalInstruction": "Use an image built for the nodes' processors, or other nodes.",
    "BusError": "Increase the shared memory with --share-memory.",
    "Killed": "If the kernel killed the process for lack of memory, raise --memory.",
    "Error": "See the log.",
    "Hang": "Look at the named rank and line: all ranks must make the same calls. "
    "If a step may take longer, raise --hang-timeout.",
    "Stopped": "Continue the stopped process (SIGCONT), or detach the debugger.",
    "EndedEarly": "Let all ranks make the same number of steps, and end together.",
    "DeviceBroken": "Have the node's devices checked; other nodes can run the job.",
}
"""What helps against the causes of ``api.failure``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The failure of one replica."""

    replica: str
    cause: str
    blame: Blame
    meaning: str
    remedy: str
    evidence: str = ""
    """The line or message that shows the failure."""
    node: str = ""
    exit_code: int | None = None
    at: datetime | None = None
    consequence: bool = False
    container: str = ""
    """The container that failed; empty if it is the one that trains."""
    is_init: bool = False
    """True if ``container`` is an init container."""

    @property
    def title(self) -> str:
        """The cause with the exit code, and the container if it is not the one that trains."""
        code = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        kind = "init container" if self.is_init else "container"
        where = f" in {kind} {self.container}" if self.container else ""
        return f"{self.cause}{where}{code}"

    def __str__(self) -> str:
        evidence = f" Message: {self.evidence}" if self.evidence else ""
        return f"{self.title}: {self.meaning}{evidence}"


def finding_order(finding: Finding) -> tuple[bool, datetime, str]:
    """Return the sort key that puts the root first.

    A replica that only lost a peer, or that was terminated from outside, is never the root.
    """
    return finding.consequence, finding.at or _LATEST, finding.replica


def root_finding(findings: Iterable[Finding]) -> Finding | None:
    return min(findings, key=finding_order, default=None)


def finding_of_pod(pod: Pod, log_tail: str = "", container: str = "") -> Finding | None:
    """Return the failure of a pod, now or before its last restart; None if there is none.

    ``log_tail`` is the end of the failed container's log, if it is known.
    """
    trains = _training_container(pod, container)
    happened = failure.failure_of_pod(pod, trains)
    ended = _first_termination(pod)
    if happened is None and ended is not None:
        happened = failure.failure_of_exit(ended.exit_code, ended.reason, ended.message)
    if happened is None:
        return None
    name, is_init = _failed_container(pod, happened, trains)
    finding = Finding(
        replica=replica_name(pod),
        cause=happened.cause,
        blame=happened.blame,
        meaning=_meaning(pod, happened),
        remedy=REMEDIES.get(happened.cause, ""),
        evidence=_evidence(pod, happened),
        node=pod.spec.node_name,
        exit_code=happened.exit_code,
        at=ended.finished_at if ended else None,
        consequence=happened.cause in _STOPPED_FROM_OUTSIDE,
        container=name,
        is_init=is_init,
    )
    message, cause = happened.message, happened.cause
    if report := _find_report(happened, log_tail):
        finding = _with_report(finding, report)
        message, cause = report.message, report.cause
    if cause in _AGENT_VERDICTS:
        return finding
    texts = [message] if report else []
    if cause in _LOG_IS_MORE_PRECISE:
        texts = [message, log_tail]
    shown = next(filter(None, map(find_symptom, texts)), None)
    if shown is None:
        return finding
    symptom, line = shown
    return replace(
        finding,
        cause=symptom.cause,
        blame=symptom.blame,
        meaning=symptom.meaning,
        remedy=symptom.remedy,
        evidence=_shorten(line),
        # The log of a terminated replica may have earlier errors; the signal ended it.
        consequence=symptom.consequence or finding.consequence,
    )


def _find_report(happened: Failure, log_tail: str) -> AgentReport | None:
    """Return the agent's report, unless the cluster has stated a reason beside the exit code."""
    by_code = None if happened.exit_code is None else failure.failure_of_exit(happened.exit_code)
    if by_code is None or by_code.cause != happened.cause:
        return None
    return read_agent_report(happened.message) or read_agent_report(log_tail)


def _with_report(finding: Finding, report: AgentReport) -> Finding:
    """Return the finding with the cause that the agent of the pod has found."""
    lines = [line.strip() for line in report.message.splitlines() if line.strip()]
    evidence = lines[-1] if lines else ""
    if report.rank is not None:
        evidence = (
            f"rank {report.rank}: {evidence}" if evidence else f"rank {report.rank} failed first"
        )
    return replace(
        finding,
        cause=report.cause,
        blame=report.blame,
        meaning=report.explanation,
        remedy=REMEDIES.get(report.cause, ""),
        evidence=_shorten(evidence),
        consequence=finding.consequence or report.cause == _PEER_LOST,
    )


_STARTING = frozenset(("ContainerCreating", "PodInitializing"))


def pod_problem(pod: Pod, log_tail: str = "") -> str:
    """Return why a pod does not run: no node, a container that waits, or a failure.

    Empty if it runs or starts. ``log_tail`` is as for ``finding_of_pod``.
    """
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return f"{scheduled.reason}: {scheduled.message}".removesuffix(": ")
    if finding := finding_of_pod(pod, log_tail):
        return str(finding)
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in _STARTING:
            return f"{waiting.reason}: {waiting.message}".removesuffix(": ")
    return pod.status.message


def _training_container(pod: Pod, main: str) -> str:
    """Return ``main``, or the container with the name of the kinds of jobs, or the first."""
    names = [status.name for status in pod.status.container_statuses]
    likely = (name for name in names if name == main or (not main and name in MAIN_CONTAINERS))
    return next(likely, names[0] if names else "")


def _failed_container(pod: Pod, happened: Failure, trains: str) -> tuple[str, bool]:
    """Return the container whose exit is the failure, and whether it is an init container.

    The name is empty for the container that trains.
    """
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    ordered = sorted(statuses, key=lambda status: status.name != trains)
    failed = next((s.name for s in ordered if _has_exited(s, happened.exit_code)), trains)
    if happened.exit_code is None or failed == trains:
        return "", False
    return failed, any(s.name == failed for s in pod.status.init_container_statuses)


def _has_exited(status: ContainerStatus, code: int | None) -> bool:
    ends = filter(None, (status.state.terminated, status.last_state.terminated))
    return any(
        code == (end.exit_code or (end.signal and failure.SIGNAL_BASE + end.signal)) for end in ends
    )


def _meaning(pod: Pod, happened: Failure) -> str:
    """Return the explanation, with the memory limit that a container has exceeded."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    exceeded = {
        status.name
        for status in statuses
        for end in (status.state.terminated, status.last_state.terminated)
        if end and end.reason == "OOMKilled"
    }
    limits = [
        container.resources.limits.get("memory")
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        if container.name in exceeded
    ]
    limit = next(filter(None, limits), None)
    if happened.cause != "OutOfMemory" or limit is None:
        return happened.explanation
    return f"The container exceeded its limit of {limit}; raise the limit or use less."


def _evidence(pod: Pod, happened: Failure) -> str:
    """Return the last line of the message, after the reason of a pod that the cluster ended."""
    lines = [line for line in happened.message.splitlines() if line.strip()]
    line = _shorten(lines[-1].strip()) if lines else ""
    if not pod.status.reason or happened.exit_code is not None:
        return line
    return f"{pod.status.reason}. {line}".strip()


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_EVIDENCE_LENGTH else f"{line[:MAX_EVIDENCE_LENGTH]}…"


def _first_termination(pod: Pod) -> ContainerStateTerminated | None:
    """Return the earliest failed termination of the pod's containers."""
    ends = [
        end
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        for end in (status.state.terminated, status.last_state.terminated)
        if end and (end.exit_code or end.reason == "OOMKilled")
    ]
    return min(ends, key=lambda end: end.finished_at or _LATEST, default=None)
