"""Why a job failed or is pending: the replica that failed first, its cause, and the remedy.

The input is what the cluster stores (status, pods, events) and the ends of the replicas' logs. The
verdict about each pod is that of ``api.verdict``, which the operator and the lists use too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gangline.api.core.pod import Pod
from gangline.api.failure import Blame
from gangline.api.verdict import REMEDIES, Finding, finding_of_pod, finding_order
from gangline.sdk.diagnosis.pending import find_lost_rank, find_pending_cause
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, JobState

__all__ = ["Diagnosis", "Finding", "diagnose"]

_NEVER_RAN = frozenset(("ImagePullFailed", "ConfigMissing"))
"""Causes of containers that wait: ``find_pending_cause`` explains them."""
_LAST_LINES = 5


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
        from gangline.sdk import html_report

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
        each
        for pod in pods
        if (each := finding_of_pod(pod, logs.get(pod.metadata.name, "")))
        and each.cause not in _NEVER_RAN
    ]
    found += _findings_of_deleted_pods(events, {pod.metadata.name for pod in pods})
    found.sort(key=finding_order)
    stall = find_lost_rank(job, datetime.now(UTC))
    if found and stall is None:
        return _failed(job, found, logs)
    if cause := stall or find_pending_cause(job, pods, events):
        finding = Finding("", cause.cause, cause.blame, cause.meaning, cause.remedy, cause.evidence)
        return Diagnosis(
            job.name,
            job.state,
            finding,
            consequences=tuple(found),
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
