"""Jobs of the past: the history, a job as its record has it, two runs compared, and usage."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import msgspec

from gangline.api.failure import Blame
from gangline.api.verdict import Finding
from gangline.dashboard.views.base import JobRow, View
from gangline.dashboard.views.curves import CurveChart, curves_view
from gangline.dashboard.views.job import (
    GoodputView,
    JobHead,
    JobPage,
    ReplicaCell,
    SpecView,
    TimelineRow,
    WhyView,
    difference,
    goodput_view,
    replica_cell,
    to_yaml,
    why_view,
)
from gangline.sdk.diagnosis import Diagnosis
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import JobState, Replica

FILTERS = ("name", "owner", "queue", "kind", "namespace", "outcome")
NOTHING: Mapping[str, str] = MappingProxyType({})
_WARNINGS = frozenset({"restarted", "workersRestarted", "failed"})


class PastRow(JobRow, frozen=True):
    uid: str = ""
    outcome: str = ""
    cause: str = ""

    @property
    def path(self) -> str:
        return f"/history/{self.namespace}/{self.kind}/{self.name}"

    @property
    def address(self) -> str:
        """How a comparison names it."""
        return f"{self.namespace}/{self.kind}/{self.name}@{self.uid}"


class HistoryView(View, frozen=True):
    rows: tuple[PastRow, ...] = ()
    filter: Mapping[str, str] = NOTHING
    next: Mapping[str, str] = NOTHING
    """Parameters of the next page, the filter among them; empty at the end."""
    hidden: int = 0
    """Jobs that the viewer may not list."""
    problem: str = ""
    """Why there is no history; empty if there is one."""

    @property
    def is_active(self) -> bool:
        return any(self.filter.values())


def past_row(job: Mapping[str, Any], record: Mapping[str, Any] | None = None) -> PastRow:
    recorded = record or {}
    goodput = recorded.get("goodput") or {}
    outcome = str(job["outcome"])
    state = recorded.get("state") or JobState.__members__.get(outcome.upper(), JobState.RUNNING)
    return PastRow.of(
        job,
        kind=str(job["kind"]).lower(),
        state=JobState(state),
        reason=recorded.get("reason", ""),
        desired=recorded.get("desired") or job.get("workers_asked") or 0,
        requested_gpus=sum(role["replicas"] * role["gpus"] for role in job.get("roles", ())),
        step=goodput.get("step"),
        goodput=goodput.get("share"),
        created=_time(job.get("submitted_ms")),
        started=_time(job.get("started_ms")),
        finished=_time(job.get("finished_ms")),
        outcome=outcome,
    )


def history_view(
    jobs: Iterable[Mapping[str, Any]],
    present: Collection[str],
    given: Mapping[str, str],
    following: Mapping[str, str],
    hidden: int = 0,
) -> HistoryView:
    """Return the list without jobs that are still in the cluster, whose UIDs are ``present``."""
    rows = tuple(past_row(job) for job in jobs if job["uid"] not in present)
    return HistoryView(rows, given, {**given, **following} if following else NOTHING, hidden)


def recorded_why(stored: Mapping[str, Any]) -> WhyView | None:
    """Return the diagnosis at the end of a job; None if it was deleted before its end."""
    record = stored.get("record") or {}
    diagnosis = record.get("diagnosis") or {}
    if not diagnosis and not record.get("reason"):
        return None
    root = diagnosis.get("root")
    return why_view(
        Diagnosis(
            stored["job"]["name"],
            record.get("state", ""),
            _finding(root) if root else None,
            tuple(_finding(one) for one in diagnosis.get("consequences", ())),
            diagnosis.get("summary") or record.get("reason", ""),
            last_lines=tuple(diagnosis.get("lastLines", ())),
        )
    )


def recorded_goodput(stored: Mapping[str, Any]) -> GoodputView | None:
    """Return where the time of a job went; None if nothing accounts for it."""
    data = (stored.get("record") or {}).get("goodput")
    if not data:
        return None
    account = Goodput(
        data["share"],
        data["wallSeconds"],
        data["productiveSeconds"],
        data.get("unproductive", ""),
        steps_lost=data.get("stepsLost", 0),
        restarts=data.get("restarts", 0),
        failures=data.get("failures", 0),
    )
    return goodput_view(account, past_row(stored["job"]).requested_gpus)


def recorded_spec(stored: Mapping[str, Any]) -> SpecView | None:
    """Return what ran; None if the record does not have it."""
    spec = stored.get("spec")
    if not spec:
        return None
    effective = spec.get("effective")
    return SpecView(to_yaml(spec["written"]), to_yaml(effective) if effective else "")


class LogTailView(View, frozen=True):
    replica: str
    attempt: int
    at: datetime | None
    lines: tuple[str, ...]


class RecordedLogsView(View, frozen=True):
    tails: tuple[LogTailView, ...] = ()


def recorded_logs(stored: Mapping[str, Any]) -> RecordedLogsView:
    return RecordedLogsView(
        tuple(
            LogTailView.of(tail, attempt=tail["attempt"] + 1, at=_time(tail["at_ms"]))
            for tail in stored.get("logs", ())
        )
    )


class Wait(View, frozen=True):
    """Why a job waited, from a time on."""

    at: datetime | None
    text: str


class RecordedPage(JobPage, frozen=True):
    """A job of the past with the content of one tab."""

    waits: tuple[Wait, ...] = ()
    is_recorded: bool = True
    """False if the history has the job, and nothing of how it went."""


def recorded_page(stored: Mapping[str, Any], content: View | None) -> RecordedPage:
    record = stored.get("record") or {}
    head = JobHead(
        row=past_row(stored["job"], record),
        uid=stored["job"]["uid"],
        replicas=tuple(map(_cell, record.get("replicas", ()))),
        timeline=tuple(map(_moment, record.get("timeline", ()))),
    )
    waits = (Wait(_time(wait["at_ms"]), wait["text"]) for wait in record.get("explanations", ()))
    return RecordedPage(head, content, tuple(waits), is_recorded=stored.get("record") is not None)


def _cell(replica: Mapping[str, Any]) -> ReplicaCell:
    defaults = {"role": "", "index": 0, "status": "", "chief": False}
    return replica_cell(msgspec.convert({**defaults, **replica}, Replica))


def _moment(entry: Mapping[str, Any]) -> TimelineRow:
    cause, blame = entry.get("cause", ""), entry.get("blame", "")
    parts = (cause, f"({blame})" if cause and blame else "", entry.get("text", ""))
    return TimelineRow(
        datetime.fromtimestamp(entry["at_ms"] / 1000, UTC),
        entry["what"],
        " ".join(filter(None, parts)),
        entry.get("replica", ""),
        is_warning=entry["what"] in _WARNINGS,
    )


def _finding(data: Mapping[str, Any]) -> Finding:
    names = ("replica", "cause", "meaning", "remedy", "evidence", "node", "container")
    texts = {name: data.get(name, "") for name in names}
    return Finding(**texts, blame=Blame(data["blame"]), exit_code=data.get("exitCode"))


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


class Side(View, frozen=True):
    row: PastRow
    duration_s: float | None = None
    gpu_hours: float = 0.0
    core_hours: float = 0.0


class PairedCurve(View, frozen=True):
    name: str
    unit: str
    left: CurveChart | None
    right: CurveChart | None

    @property
    def has_steps(self) -> bool:
        """Whether the numbers can be shown over steps."""
        return all(chart is not None and bool(chart.steps) for chart in (self.left, self.right))


class CompareView(View, frozen=True):
    given: tuple[str, ...] = ()
    left: Side | None = None
    right: Side | None = None
    curves: tuple[PairedCurve, ...] = ()
    difference: tuple[str, ...] = ()
    """Lines of the difference of the specifications: they begin with ``+``, ``-`` or a space."""
    problem: str = ""
    """Why nothing can be compared; empty if it can."""


def compare_view(
    given: tuple[str, str], left: Mapping[str, Any], right: Mapping[str, Any]
) -> CompareView:
    first, second = (
        {chart.name: chart for chart in curves_view(stored.get("record") or {}).charts}
        for stored in (left, right)
    )
    return CompareView(
        given,
        _side(left),
        _side(right),
        tuple(
            PairedCurve(name, chart.unit, first.get(name), second.get(name))
            for name, chart in (first | second | first).items()
        ),
        difference(_comparable(left), _comparable(right)),
    )


def _side(stored: Mapping[str, Any]) -> Side:
    row = past_row(stored["job"], stored.get("record"))
    began, ended = row.started, row.finished
    return Side(
        row,
        (ended - began).total_seconds() if began and ended else None,
        stored.get("gpu_seconds", 0) / 3600,
        stored.get("cpu_seconds", 0) / 3600,
    )


_OF_THE_OBJECT = ("uid", "creationTimestamp", "name")


def _comparable(stored: Mapping[str, Any]) -> str:
    """Return a specification as YAML, without what identifies its object."""
    written = dict((stored.get("spec") or {}).get("written") or {})
    meta = written.get("metadata") or {}
    written["metadata"] = {key: meta[key] for key in meta if key not in _OF_THE_OBJECT}
    return to_yaml(written)


GROUPS = ("queue", "owner", "kind", "namespace", "month")
MONTHS = 12


class UsageLine(View, frozen=True):
    key: str
    jobs: int
    gpu_hours: float
    core_hours: float
    productive: float | None = None
    """Share of the GPU hours in productive steps, of jobs that account for their time; None if no
    job does."""
    share: float = 0.0
    """Of all rows: of the GPU hours, or of the core hours if no job had GPUs."""


class UsageView(View, frozen=True):
    by: str
    month: str
    """Such as ``2026-11``; empty: all of the time."""
    months: tuple[str, ...]
    """Months that can be chosen, the last first."""
    rows: tuple[UsageLine, ...] = ()
    problem: str = ""
    """Why there is no account; empty if there is one."""


def usage_view(
    rows: Sequence[Mapping[str, Any]], by: str, month: str, months: Sequence[str]
) -> UsageView:
    unit = "gpu_seconds" if any(row["gpu_seconds"] for row in rows) else "cpu_seconds"
    total = sum(row[unit] for row in rows)
    shown = (
        UsageLine.of(
            row,
            gpu_hours=row["gpu_seconds"] / 3600,
            core_hours=row["cpu_seconds"] / 3600,
            productive=row["productive_seconds"] / row["accounted_seconds"]
            if row["accounted_seconds"]
            else None,
            share=row[unit] / total if total else 0.0,
        )
        for row in rows
    )
    return UsageView(by, month, tuple(months), tuple(shown))


def to_csv(view: UsageView) -> str:
    """Return the rows as CSV; no cell is a formula of a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((view.by, "jobs", "gpu_hours", "core_hours", "productive_share"))
    for row in view.rows:
        productive = "" if row.productive is None else f"{row.productive:.4f}"
        key = f"'{row.key}" if row.key.startswith(("=", "+", "-", "@")) else row.key
        hours = (f"{row.gpu_hours:.3f}", f"{row.core_hours:.3f}")
        writer.writerow((key, row.jobs, *hours, productive))
    return text.getvalue()


def recent_months(now: datetime) -> dict[str, tuple[int, int]]:
    """Return this month and those before it: by name the first time of each, and the first after
    it, in milliseconds (UTC).
    """
    last = 12 * now.year + now.month - 1
    numbers = range(last + 1, last - MONTHS, -1)
    firsts = [datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC) for number in numbers]
    return {
        f"{first:%Y-%m}": (round(first.timestamp() * 1000), round(after.timestamp() * 1000))
        for after, first in pairwise(firsts)
    }
