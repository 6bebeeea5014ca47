"""How jobs look in notebooks: HTML that any notebook shows, in its own light or dark colours.

Everything that comes from the cluster is escaped: a message of a pod is nobody's markup.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.sdk.diagnosis import Diagnosis, Finding
    from gangline.sdk.jobs import Job

_COLOURS = {
    "RUNNING": "#1a73e8",
    "SUCCEEDED": "#188038",
    "FAILED": "#d93025",
    "RESTARTING": "#e37400",
    "QUEUING": "#e37400",
}
_GREY = "#80868b"


def job_html(job: "Job", now: datetime | None = None) -> str:
    """Return a job: its state, why it is so, and its replicas."""
    facts = [f"{job.running} of {job.wanted} replicas run", _lasted(job, now)]
    if job.requested_gpus:
        facts.append(f"{job.allocated_gpus} of {job.requested_gpus} GPUs")
    if job.queue:
        facts.append(f"queue {escape(job.queue)}")
    rows = [
        (
            replica.short_name,
            replica.status,
            replica.node,
            replica.gpus,
            replica.restarts,
            "" if replica.exit_code is None else replica.exit_code,
            replica.message,
        )
        for replica in job.replicas
    ]
    head = ("Replica", "Status", "Node", "GPUs", "Restarts", "Exit", "Message")
    parts = [f"{_title(job)} · {' · '.join(filter(None, facts))}"]
    parts += [f"<i>{escape(job.reason)}</i>"] if job.reason else []
    return "<br>".join(parts) + (_table(head, rows) if rows else "")


def jobs_html(jobs: Sequence["Job"], now: datetime | None = None) -> str:
    """Return jobs as a table."""
    if not jobs:
        return "<i>No jobs.</i>"
    head = ("Job", "Kind", "State", "Replicas", "GPUs", "Duration", "Reason")
    rows = [
        (
            job.name,
            job.kind.trainer,
            job.state,
            f"{job.running}/{job.wanted}",
            job.requested_gpus,
            _lasted(job, now),
            job.reason,
        )
        for job in jobs
    ]
    return _table(head, rows)


def diagnosis_html(diagnosis: "Diagnosis") -> str:
    """Return what is the matter with a job, and what to do next."""
    parts = [f"<b>{escape(diagnosis.job)}</b> {_coloured(diagnosis.state)}"]
    parts.append(escape(diagnosis.summary))
    findings = [diagnosis.root, *diagnosis.consequences] if diagnosis.root else []
    rows = [_finding(each) for each in findings if each is not None]
    shown = "<br>".join(filter(None, parts))
    if rows:
        shown += _table(("Replica", "Cause", "Evidence", "What helps"), rows)
    if diagnosis.last_lines:
        shown += f"<pre>{escape(chr(10).join(diagnosis.last_lines))}</pre>"
    steps = "".join(f"<li>{escape(step)}</li>" for step in diagnosis.next_steps)
    return shown + (f"<ul>{steps}</ul>" if steps else "")


def _finding(finding: "Finding") -> tuple[object, ...]:
    cause = f"{finding.cause} (a consequence)" if finding.consequence else finding.cause
    return finding.replica, cause, finding.evidence, finding.remedy


def _title(job: "Job") -> str:
    name = f"{job.kind.trainer}/{job.name}"
    return f"<b>{escape(name)}</b> {_coloured(job.state)}"


def _coloured(state: str) -> str:
    return f'<b style="color:{_COLOURS.get(state, _GREY)}">{escape(state)}</b>'


def _lasted(job: "Job", now: datetime | None) -> str:
    """How long a job has run, as hours, minutes and seconds."""
    if job.started is None:
        return ""
    until = job.finished or now or datetime.now(UTC)
    seconds = max(0, int((until - job.started).total_seconds()))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    top = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = str(value)
    return f"<td>{_coloured(text) if text in _COLOURS else escape(text)}</td>"
