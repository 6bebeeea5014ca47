"""Why a job failed or is pending: the replica that failed first, its cause, and the remedy.

The input is what the cluster stores (status, pods, events) and the ends of the replicas' logs.

1. The cluster's reason for ending a pod precedes what its program wrote while it ended.
2. A known line in a log is more precise than an exit code.
3. The root is the earliest failure that is not a consequence of another one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gangline.api import failure
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStateTerminated, ContainerStatus
from gangline.api.failure import Blame, Failure
from gangline.sdk.diagnosis.pending import find_pending_cause
from gangline.sdk.diagnosis.symptoms import Symptom, find_symptom
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, JobState, replica_name

_LATEST = datetime.max.replace(tzinfo=UTC)
_PROGRAM_FAILURES = frozenset(
    ("Error", "Aborted", "Unknown", "Signalled", "UsageError", "CrashLoop")
)
"""Causes that only state a bad exit of the program; its log is more precise."""
_STOPPED_FROM_OUTSIDE = frozenset(("Terminated", "Killed", "Interrupted", "Hangup"))
_AMBIGUOUS_CAUSES = frozenset(("BusError", "BrokenPipe", "CannotStart"))
"""Exit codes that a program may use itself: git exits with 128, as a container that cannot start.
"""
_LAST_LINES = 5


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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The root cause of a job's state, with consequences and next steps."""

    job: str
    state: str
    root: Finding | None
    """None if no failure is known."""
    consequences: tuple[Finding, ...] = ()
    summary: str = ""
    next_steps: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    """Last log lines of the replica that failed first."""

    def _repr_html_(self) -> str:
        from gangline.sdk import html_report  # noqa: PLC0415 - only notebooks call this

        title = html_report.heading(self.job, self.state)
        shown = html_report.lines([title, html_report.paragraph(self.summary)])
        if self.root:
            head = ("Replica", "Cause", "Evidence", "What helps")
            findings = (self.root, *self.consequences)
            shown += html_report.table(head, map(_table_row, findings))
        if self.last_lines:
            shown += html_report.preformatted("\n".join(self.last_lines))
        return shown + html_report.bullets(self.next_steps)


def _table_row(finding: Finding) -> tuple[object, ...]:
    cause = f"{finding.cause} (a consequence)" if finding.consequence else finding.cause
    return finding.replica, cause, finding.evidence, finding.remedy


def diagnose(
    job: Job,
    pods: Sequence[Pod],
    events: Sequence[EventRecord] = (),
    tails: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Find the root cause.

    Args:
        job: the job.
        pods: its pods, including failed ones.
        events: events of the job and its pods.
        tails: the ends of the logs, by pod name.
    """
    logs = tails or {}
    found = [
        each for pod in pods if (each := _finding_of_pod(pod, logs.get(pod.metadata.name, "")))
    ]
    found += _findings_of_deleted_pods(events, {pod.metadata.name for pod in pods})
    # A replica that only lost a peer, or that was terminated from outside, is never the root.
    found.sort(key=lambda each: (each.consequence, each.at or _LATEST, each.replica))
    if found:
        return _failed(job, found, logs)
    if cause := find_pending_cause(job, pods, events):
        finding = Finding("", cause.cause, cause.blame, cause.meaning, cause.remedy, cause.evidence)
        return Diagnosis(
            job.name,
            job.state,
            finding,
            summary=_sentence(finding),
            next_steps=_steps(job, finding),
        )
    return Diagnosis(
        job.name,
        job.state,
        None,
        summary=_summary_without_finding(job),
        next_steps=_steps(job, None),
    )


def _failed(job: Job, found: Sequence[Finding], logs: Mapping[str, str]) -> Diagnosis:
    root, *others = found
    lines = logs.get(f"{job.name}-{root.replica}", "").strip().splitlines()[-_LAST_LINES:]
    return Diagnosis(
        job=job.name,
        state=job.state,
        root=root,
        consequences=tuple(others),
        summary=_sentence(root),
        next_steps=_steps(job, root),
        last_lines=tuple(lines),
    )


def _finding_of_pod(pod: Pod, tail: str) -> Finding | None:
    """Return the failure of a pod, now or before its last restart."""
    happened = failure.failure_of_pod(pod)
    ended = _first_termination(pod)
    if happened is None and ended is not None:
        happened = failure.failure_of_exit(ended.exit_code, ended.reason, ended.message)
    if happened is None:
        return None
    if happened.blame is Blame.USER and happened.cause in {"ImagePullFailed", "ConfigMissing"}:
        return None  # the container never ran: see ``waiting``
    shown = find_symptom(tail) if _log_may_be_more_specific(happened) else None
    if shown is not None:
        return _finding_from_log(pod, happened, ended, *shown)
    return Finding(
        replica=replica_name(pod),
        cause=happened.cause,
        blame=happened.blame,
        meaning=happened.explanation,
        remedy=_REMEDIES.get(happened.cause, ""),
        evidence=happened.message,
        node=pod.spec.node_name,
        exit_code=happened.exit_code,
        at=ended.finished_at if ended else None,
        consequence=happened.cause in _STOPPED_FROM_OUTSIDE,
    )


def _log_may_be_more_specific(happened: Failure) -> bool:
    return happened.cause in _PROGRAM_FAILURES | _STOPPED_FROM_OUTSIDE | _AMBIGUOUS_CAUSES


def _finding_from_log(
    pod: Pod,
    happened: Failure,
    ended: ContainerStateTerminated | None,
    symptom: Symptom,
    line: str,
) -> Finding:
    # The log of a terminated replica may have earlier errors; the signal ended it.
    was_terminated = happened.cause in _STOPPED_FROM_OUTSIDE
    return Finding(
        replica=replica_name(pod),
        cause=symptom.cause,
        blame=symptom.blame,
        meaning=symptom.meaning,
        remedy=symptom.remedy,
        evidence=line,
        node=pod.spec.node_name,
        exit_code=happened.exit_code,
        at=ended.finished_at if ended else None,
        consequence=symptom.consequence or was_terminated,
    )


def _first_termination(pod: Pod) -> ContainerStateTerminated | None:
    """Return the earliest failed termination of the pod's containers."""
    ends = [
        end
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        for end in _terminations(status)
        if end.exit_code or end.reason == "OOMKilled"
    ]
    return min(ends, key=lambda end: end.finished_at or _LATEST, default=None)


def _terminations(status: ContainerStatus) -> Iterable[ContainerStateTerminated]:
    return filter(None, (status.state.terminated, status.last_state.terminated))


_CAUSES_BY_EVENT = {
    "Evicted": "Evicted",
    "Preempted": "Preempted",
    "TaintManagerEviction": "NodeTainted",
    "NodeNotReady": "NodeLost",
    "NodeLost": "NodeLost",
    "OOMKilling": "OutOfMemory",
}


def _findings_of_deleted_pods(events: Sequence[EventRecord], there: set[str]) -> Iterable[Finding]:
    """Yield failures of deleted pods, from events."""
    for event in events:
        kind, _, name = event.subject.partition("/")
        cause = _CAUSES_BY_EVENT.get(event.reason)
        if kind == "pod" and cause and name not in there:
            yield Finding(
                replica="-".join(name.rsplit("-", 2)[-2:]),
                cause=cause,
                blame=Blame.USER if cause == "OutOfMemory" else Blame.NODE,
                meaning=_MEANINGS[cause],
                remedy=_REMEDIES[cause],
                evidence=event.message,
                at=event.last,
            )


_MEANINGS = {
    "Evicted": "The node ran short of memory or disk and evicted the pod.",
    "Preempted": "The pod was preempted by one of higher priority.",
    "NodeTainted": "The node got a taint that the pod does not tolerate.",
    "NodeLost": "The node sends no heartbeats any more.",
    "OutOfMemory": "The container used more memory than its limit.",
}
_REMEDIES = {
    "OutOfMemory": "Raise --memory, or use less memory.",
    "Evicted": "Request the memory and disk that the job uses; nodes are then not overcommitted.",
    "Preempted": "Use a higher --priority, or let it run again: nothing is wrong with the job.",
    "NodeTainted": "Add --toleration, or have the node checked.",
    "NodeLost": "Have the node checked; with --retry the job continues on another node.",
    "NodeShutdown": "With --retry the job continues on another node.",
    "Drained": "With --retry the job continues on another node.",
    "NodeFull": "With --retry the job is scheduled again.",
    "DeviceUnavailable": "Have the node's devices checked; with --retry the job moves elsewhere.",
    "CommandNotFound": "Correct the command, or use an image that contains it.",
    "NotExecutable": "Make the file executable, or name its interpreter.",
    "CannotStart": "Correct the command, the working folder or the mounts.",
    "DeadlineExceeded": "Raise --running-timeout, or write checkpoints and resume.",
    "SegmentationFault": "Look for a broken native library; faulthandler shows the location.",
    "IllegalInstruction": "Use an image built for the nodes' processors, or other nodes.",
    "BusError": "Increase the shared memory with --share-memory.",
    "Killed": "If the kernel killed the process for lack of memory, raise --memory.",
    "Error": "See the log.",
}


def _sentence(finding: Finding) -> str:
    code = "" if finding.exit_code is None else f" (exit code {finding.exit_code})"
    where = f"{finding.replica}{f' on {finding.node}' if finding.node else ''}: "
    return f"{where if finding.replica else ''}{finding.cause}{code}: {finding.meaning}"


def _summary_without_finding(job: Job) -> str:
    match job.state:
        case JobState.SUCCEEDED:
            return "The job has succeeded."
        case JobState.RUNNING:
            return "The job runs, and nothing has failed."
        case JobState.FAILED:
            return f"The job has failed, and its replicas are deleted. {job.reason}".strip()
    return job.reason or "There is no event yet that explains why the job does not run."


def _steps(job: Job, root: Finding | None) -> tuple[str, ...]:
    where = f"-n {job.namespace}"
    steps = [root.remedy] if root and root.remedy else []
    if root and root.replica:
        steps.append(f"'gangline logs {job.name} -i {root.replica} {where}' prints its log.")
    if job.state is JobState.QUEUING:
        steps.append(f"'gangline explain {job.name} {where}' shows the figures.")
    if job.state is JobState.FAILED:
        steps.append(f"'gangline restart {job.name} {where}' runs it again.")
    return tuple(steps)
