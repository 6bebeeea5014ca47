"""Why a job failed or is pending: the replica that failed first, its cause, and the remedy.

``diagnose_job`` reads what the cluster stores (status, pods, events) and the ends of the replicas'
logs; ``diagnose`` judges them. The verdict about each pod is that of ``api.verdict``, which the
operator and the lists use too. Without a failed pod the cause is in messages (``pending_causes``).
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.failure import ENDS_AGAIN, Blame
from gangline.api.job_names import NOT_ALL_PODS_RAN
from gangline.api.resources import PODS
from gangline.api.symptoms import pending_causes
from gangline.api.verdict import REMEDIES, Finding, finding_of_pod, finding_order
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Forbidden
from gangline.sdk import missing_files
from gangline.sdk.client import JobClient, JobError
from gangline.sdk.events import EventRecord, job_events
from gangline.sdk.jobs import JOB_NAME_LABEL, Job, JobState
from gangline.sdk.logs import deleted_pods, read_tail

__all__ = ["Diagnosis", "Finding", "diagnose"]

_USER, _PLATFORM = Blame.USER, Blame.PLATFORM


_LOST_RANK = re.compile(r"^\S+ waits for \S+, which ended at (\S+), before")
"""The operator's message about a restarted rank that waits for one that has ended."""


def find_lost_rank(job: Job, now: datetime) -> Finding | None:
    """Return the cause of a job that can never end; None if it may."""
    lost = None if job.state.finished else _LOST_RANK.match(job.reason)
    if lost is None:
        return None
    with suppress(ValueError):
        seconds = (now - datetime.fromisoformat(lost[1])).total_seconds()
        since = f"{seconds // 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
        meaning = job.reason.replace(f"which ended at {lost[1]}", f"which ended {since} ago")
        return Finding(
            "",
            "RankLeft",
            _USER,
            meaning,
            f"Let the ranks end together (torch.distributed.destroy_process_group), and "
            f"'gangline restart {job.name} -n {job.namespace}'. The annotation "
            "gangline.dev/restart=gang restarts all ranks when one fails; "
            "gangline.dev/stalled=restart or =fail acts once a job is stalled.",
            job.reason,
        )
    return None


def find_pending_cause(
    job: Job, pods: Sequence[Pod], events: Sequence[EventRecord]
) -> Finding | None:
    """Return why a job is pending; None if no known reason applies."""
    if job.state.finished or job.state is JobState.RUNNING:
        return _failure_of_whole_job(job) if job.state is JobState.FAILED else None
    if job.awaits_former_pods:
        meaning = "The job is resumed, and waits until its former pods have ended."
        return Finding("", "Suspended", _USER, meaning, "", job.reason)
    if job.state is JobState.SUSPENDED:
        remedy = f"'gangline resume {job.name} -n {job.namespace}' resumes it."
        return Finding("", "Suspended", _USER, "The job is suspended.", remedy, job.reason)
    for text in _candidate_texts(job, pods, events):
        if symptom := _match_pattern(text):
            return symptom
    if job.managed_elsewhere and not pods:
        return Finding(
            "", "ManagedElsewhere", _PLATFORM, "MultiKueue runs the job in another cluster.",
            "'kubectl describe workloads.kueue.x-k8s.io' shows where and why it waits.", job.reason,
        )  # fmt: skip
    if not pods and not job.reason and not events:
        return Finding(
            "", "NotNoticed", _PLATFORM, "No operator has reacted to the job.",
            "'gangline doctor' shows whether one runs.",
        )  # fmt: skip
    if job.reason:
        return Finding("", "Waiting", _PLATFORM, "The job is pending.", "", job.reason)
    return None


def _failure_of_whole_job(job: Job) -> Finding | None:
    """Return the cause of a failure that ended the complete job and left no failed replica."""
    text, _, pending = job.reason.partition(NOT_ALL_PODS_RAN)
    if re.search(r"(?i)active longer than|deadline", text):
        if pending and (cause := _match_pattern(pending)):
            return cause  # the deadline is only its consequence
        return Finding(
            "", "DeadlineExceeded", _USER, "The job exceeded its time limit.",
            "Raise --running-timeout, or write checkpoints and resume.", job.reason,
        )  # fmt: skip
    if re.search(r"(?i)InvalidSpec|not valid|mistake", job.reason):
        meaning = "The job is invalid."
        return Finding("", "InvalidSpec", _USER, meaning, "Correct it.", job.reason)
    return None


def _candidate_texts(job: Job, pods: Sequence[Pod], events: Sequence[EventRecord]) -> Iterator[str]:
    """Yield messages about the job: the most specific first, of events the newest first."""
    for pod in pods:
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            if waiting := status.state.waiting:
                yield f"{waiting.reason} {waiting.message}"
    warnings = [event for event in events if event.type == "Warning"]
    yield job.reason
    for warning in reversed(warnings):
        yield f"{warning.reason} {warning.message}"
    for replica in job.replicas:
        yield replica.message


def _match_pattern(text: str) -> Finding | None:
    cause = next((cause for cause in pending_causes() if cause.pattern.search(text)), None)
    if cause is None:
        return None
    return Finding("", cause.cause, cause.blame, cause.meaning, cause.remedy, text.strip())


_WORKERS_FAILED = "WorkersFailed"
"""Reason of the events of an elastic job's master about failures."""
_NEVER_RAN = frozenset(("ImagePullFailed", "ConfigMissing"))
"""Causes of containers that wait: ``find_pending_cause`` explains them."""
_LAST_LINES = 5


@dataclass(frozen=True, slots=True, repr=False)
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

    def __repr__(self) -> str:
        consequences = [
            f"  {finding.replica}: {finding.cause}, a consequence" for finding in self.consequences
        ]
        evidence = self.root.evidence if self.root else ""
        if evidence in self.last_lines:
            evidence = ""
        last_lines = [f"  | {line}" for line in self.last_lines]
        steps = [f"  - {step}" for step in self.next_steps]
        title = f"{self.job} {self.state}: {self.summary}"
        shown_evidence = [f"  {evidence}"] if evidence else []
        return "\n".join([title, *shown_evidence, *consequences, *last_lines, *steps])

    def _repr_html_(self) -> str:
        from gangline import display

        title = display.heading(self.job, self.state)
        shown = display.lines([title, display.paragraph(self.summary)])
        if self.root:
            head = ("Replica", "Cause", "Evidence", "What helps")
            findings = (self.root, *self.consequences)
            shown += display.table(head, map(_table_row, findings))
        if self.last_lines:
            shown += display.preformatted("\n".join(self.last_lines))
        return shown + display.bullets(self.next_steps)


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
    # By finding, not by replica: an elastic job has several pods of one rank, one after the other.
    tail_of = {
        of_pod: tail
        for pod in pods
        for tail in [logs.get(pod.metadata.name, "")]
        if (of_pod := finding_of_pod(pod, tail)) and of_pod.cause not in _NEVER_RAN
    }
    findings = list(tail_of)
    findings += _findings_of_deleted_pods(events, {pod.metadata.name for pod in pods})
    findings.sort(key=finding_order)
    stall = find_lost_rank(job, datetime.now(UTC))
    if findings and stall is None:
        return _failed(job, findings, tail_of.get(findings[0], ""))
    root = stall or find_pending_cause(job, pods, events)
    return Diagnosis(
        job.name,
        job.state,
        root,
        consequences=tuple(findings),
        summary=_sentence(root) if root else _summary_without_finding(job, events),
        next_steps=_steps(job, root),
    )


def _failed(job: Job, findings: Sequence[Finding], log: str) -> Diagnosis:
    """Return the diagnosis of a job with failed replicas; ``log`` is that of the first."""
    root, *others = findings
    return Diagnosis(
        job=job.name,
        state=job.state,
        root=root,
        consequences=tuple(others),
        summary=_sentence(root),
        next_steps=_steps(job, root),
        last_lines=tuple(last_lines(log)),
    )


_FRAME = re.compile(r'File "([^"]+)", line \d+')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python[\d.]+/|^<frozen ")


def last_lines(log: str) -> list[str]:
    """Return the last lines of a log, and above them the last frame of the user's own code."""
    lines = log.strip().splitlines()
    at = max(0, len(lines) - _LAST_LINES)
    frames = [number for number, line in enumerate(lines) if _is_own_frame(line)]
    if not frames or frames[-1] >= at:
        return lines[at:]
    # A frame is followed by its source, and sometimes by marks below it.
    end = frames[-1] + 1
    while end < at and not _FRAME.search(lines[end]) and lines[end].startswith((" ", "[rank")):
        end += 1
    gap = ["  ..."] if end < at else []
    return [*lines[frames[-1] : end], *gap, *lines[at:]]


def _is_own_frame(line: str) -> bool:
    frame = _FRAME.search(line)
    return frame is not None and not _LIBRARY.search(frame[1])


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
                remedy=REMEDIES[cause],
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


def _sentence(finding: Finding) -> str:
    where = f"{finding.replica}{f' on {finding.node}' if finding.node else ''}:"
    return f"{where if finding.replica else ''} {finding.title}: {finding.meaning}".strip()


def _summary_without_finding(job: Job, events: Sequence[EventRecord]) -> str:
    match job.state:
        case JobState.SUCCEEDED:
            return "The job has succeeded."
        case JobState.RUNNING if job.last_restart:
            return f"The job runs again. It was restarted because {job.last_restart}"
        case JobState.RUNNING:
            # Restarts by agents inside of running pods are in no status.
            failed = [event.message for event in events if event.reason == _WORKERS_FAILED]
            if failed:
                return f"The job runs. Workers have failed and were restarted: {failed[-1]}"
            return "The job runs, and nothing has failed."
        case JobState.RESTARTING if job.last_restart:
            return f"The job is being restarted because {job.last_restart}"
        case JobState.FAILED:
            return f"The job has failed, and its replicas are deleted. {job.reason}".strip()
    return job.reason or (
        "There is no event yet that explains why the job does not run. 'gangline doctor' checks "
        "whether its operator and scheduler work."
    )


def _steps(job: Job, root: Finding | None) -> tuple[str, ...]:
    where = f"-n {job.namespace}"
    steps = [root.remedy] if root and root.remedy else []
    if root and root.replica:
        which = f"{root.replica} -c {root.container}" if root.container else root.replica
        steps.append(f"'gangline logs {job.name} -i {which} {where}' prints its log.")
    if job.state is JobState.QUEUING:
        steps.append(f"'gangline explain {job.name} {where}' shows the figures.")
    if job.state is JobState.FAILED:
        steps.append(f"'gangline restart {job.name} {where}' runs it again.")
    return tuple(steps)


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain data, with the keys of ``gangline diagnose -o json``."""
    return {
        "job": diagnosis.job,
        "status": str(diagnosis.state),
        "summary": diagnosis.summary,
        "root": finding_data(diagnosis.root) if diagnosis.root else None,
        "consequences": [finding_data(consequence) for consequence in diagnosis.consequences],
        "nextSteps": list(diagnosis.next_steps),
        "lastLines": list(diagnosis.last_lines),
    }


def finding_data(finding: Finding) -> dict[str, Any]:
    """Return the failure of one replica as plain data."""
    return {
        "replica": finding.replica,
        "cause": finding.cause,
        "blame": str(finding.blame),
        "meaning": finding.meaning,
        "remedy": finding.remedy,
        "evidence": finding.evidence,
        "node": finding.node,
        "exitCode": finding.exit_code,
        "container": finding.container,
        "time": finding.at.isoformat() if finding.at else None,
    }


TAIL_LINES = 200
MAX_LOGS = 64
"""Limit of replicas whose logs are read: the logs of a large gang repeat each other."""


async def diagnose_job(jobs: JobClient, name: str, namespace: str) -> Diagnosis:
    """Diagnose a job.

    Raises:
        NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
    """
    client = jobs.client
    job = await jobs.get(name, namespace)
    listing = await client.list(PODS, namespace, labels=f"{JOB_NAME_LABEL}={job.name}")
    owners = {pod.metadata.name: pod.metadata.controller for pod in listing.items}
    pods = [pod for pod in listing.items if (o := owners[pod.metadata.name]) and o.uid == job.uid]
    events = await _events(client, job)
    deleted = await _deleted_pods(client, job, pods) if job.state is JobState.FAILED else []
    pods += deleted
    deleted_uids = {pod.metadata.uid for pod in deleted}
    failed = [pod for pod in pods if has_failed_container(pod)][:MAX_LOGS]
    tails = await asyncio.gather(
        *(_tail(client, pod, job.uid if pod.metadata.uid in deleted_uids else "") for pod in failed)
    )
    logs = dict(zip((pod.metadata.name for pod in failed), tails, strict=True))
    verdict = diagnose(job, pods, events, logs)
    root = verdict.root
    if root is None or root.cause not in missing_files.CAUSES:
        return verdict
    remedy = await missing_files.find_resubmission(jobs, name, namespace, root.evidence)
    if not remedy:
        return verdict
    root = replace(root, remedy=remedy)
    return replace(verdict, root=root, next_steps=_steps(job, root))


async def with_cause(jobs: JobClient, job: Job) -> Job:
    """Return a job that does not run with the cause that ``diagnose_job`` finds as its reason.

    The reason of a job is known without its logs, and may be less precise. Lists, which would have
    to read the logs of many jobs, show that one.
    """
    has_failed_replicas = any(replica.exit_code for replica in job.replicas)
    if job.state not in {JobState.FAILED, JobState.RESTARTING} and (
        job.state.finished or job.state is JobState.RUNNING or not has_failed_replicas
    ):
        return job
    try:
        diagnosis = await diagnose_job(jobs, job.qualified_name, job.namespace)
    except (ApiError, JobError):
        return job
    root = diagnosis.root
    if root is None or not root.replica or f"{root.title}: {root.meaning}" in job.reason:
        return job
    if job.state is JobState.FAILED and job.reason and root.meaning.startswith(ENDS_AGAIN):
        return job  # that the kubelet still restarts a pod says nothing of why the job has ended
    return replace(job, reason=f"{root.replica}: {root}")


async def _deleted_pods(client: ApiClient, job: Job, present: Sequence[Pod]) -> list[Pod]:
    """Return the last deleted pod of each name whose log the cluster has stored."""
    names = {pod.metadata.name for pod in present}
    last = {pod.metadata.name: pod for pod in await deleted_pods(client, job) or ()}
    return [pod for name, pod in last.items() if name not in names]


async def _events(client: ApiClient, job: Job) -> Sequence[EventRecord]:
    try:
        return await job_events(client, job.namespace, job)
    except Forbidden:
        return []


def has_failed_container(pod: Pod) -> bool:
    """True if a container of the pod has failed, now or before."""
    return any(
        end is not None and bool(end.exit_code or end.signal)
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        for end in (status.state.terminated, status.last_state.terminated)
    )


def failed_container(pod: Pod) -> tuple[str, bool]:
    """Return the first failed container, and whether a later run of it has begun; or no name."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        now, before = status.state.terminated, status.last_state.terminated
        failed = now if now and now.exit_code else before
        if failed is not None and failed.exit_code:
            return status.name, failed is before
    return "", False


async def _tail(client: ApiClient, pod: Pod, kept_for: str) -> str:
    """Return the end of the log of the failed container; ``kept_for`` as in ``Client.logs``."""
    name, previous = failed_container(pod)
    if not name:
        return ""
    lines = await read_tail(client, pod, name, TAIL_LINES, previous=previous, kept_for=kept_for)
    return "\n".join(lines)
