"""The record of one run of a job: what a page about it shows when the job is gone. Pure.

Identity, outcome and accounts are those of ``records.Job``; a record has what that row lacks: how
the run went (timeline), why it waited (explanations), why it failed (diagnosis), its replicas, and
its curves. A record is written again while the job runs. Two writers of one run (a leader and its
successor) observe the same times, so ``merge_records`` is a union by identity.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

MAX_ENTRIES: Final = 500
"""Entries of a timeline, and explanations; the first and the last ones are kept."""
MAX_POINTS: Final = 720
"""Points of one curve table; beyond it neighbours are joined."""
MAX_CURVES: Final = 64
MAX_REPLICAS: Final = 1_000
MAX_LINES: Final = 2_000
"""Last lines of one failed replica."""
FIRST_GAP_MS: Final = 1_000


class Moment(StrEnum):
    """What can happen to a job, in the order in which it is shown for one time."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    PLACED = "placed"
    STARTED = "started"
    RESUMED = "resumed"
    RESIZED = "resized"
    RESTARTED = "restarted"
    """Replicas were restarted, in place or by new pods."""
    WORKERS_RESTARTED = "workersRestarted"
    """An elastic job restarted its processes, without new containers."""
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETED = "deleted"


_ORDER = {moment.value: number for number, moment in enumerate(Moment)}


_ONCE = frozenset({Moment.SUBMITTED, Moment.SUCCEEDED, Moment.FAILED, Moment.DELETED})


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One moment, which ``key`` identifies: a restart by its number, an end by what it is."""

    what: str
    at_ms: int
    number: int = 0
    """Of restarts: their count so far. Of sizes: the number of replicas."""
    text: str = ""
    cause: str = ""
    blame: str = ""
    replica: str = ""
    node: str = ""
    exit_code: int | None = None
    step: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        if self.what in _ONCE:
            return self.what, 0
        is_counted = self.what in {Moment.RESTARTED, Moment.WORKERS_RESTARTED}
        return self.what, self.number if is_counted else self.at_ms


class RecordedExplanation(msgspec.Struct, frozen=True):
    """Why the job did not run, from this time on."""

    at_ms: int
    text: str


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica as it was observed last."""

    name: str
    role: str = ""
    index: int = 0
    node: str = ""
    status: str = ""
    restarts: int = 0
    exit_code: int | None = None
    gpus: int = 0
    message: str = ""


class Curves(msgspec.Struct, frozen=True, omit_defaults=True):
    """Values over time: a column for each name, None where it was not measured."""

    at_ms: tuple[int, ...] = ()
    values: dict[str, tuple[float | None, ...]] = {}
    gap_ms: int = FIRST_GAP_MS
    """Points that are closer are one point."""

    def with_point(self, at_ms: int, values: Mapping[str, float]) -> Self:
        """Return the curves with one more point; a time before the last one is ignored."""
        if not values or (self.at_ms and at_ms < self.at_ms[-1]):
            return self
        names = [*self.values, *(name for name in values if name not in self.values)][:MAX_CURVES]
        is_new = not self.at_ms or at_ms - self.at_ms[-1] >= self.gap_ms
        before = len(self.at_ms) if is_new else len(self.at_ms) - 1
        columns: dict[str, tuple[float | None, ...]] = {}
        for name in names:
            column = self.values.get(name) or (None,) * len(self.at_ms)
            last = None if is_new else column[-1]
            columns[name] = (*column[:before], values.get(name, last))
        times = (*self.at_ms, at_ms) if is_new else self.at_ms
        return type(self)(times, columns, self.gap_ms).bounded()

    def bounded(self) -> Self:
        """Join neighbours, as means, until there are at most ``MAX_POINTS``."""
        curves = self
        while len(curves.at_ms) > MAX_POINTS:
            values = {name: _pairs(column) for name, column in curves.values.items()}
            curves = type(self)(curves.at_ms[::2], values, curves.gap_ms * 2)
        return curves

    def after(self, earlier: Self) -> Self:
        """Return ``earlier`` up to the begin of these curves, and these."""
        count = sum(at < self.at_ms[0] for at in earlier.at_ms) if self.at_ms else None
        if count == 0:
            return self
        if count is None:
            return earlier
        values: dict[str, tuple[float | None, ...]] = {}
        for name in [*earlier.values, *self.values][:MAX_CURVES]:
            first = earlier.values.get(name) or (None,) * len(earlier.at_ms)
            second = self.values.get(name) or (None,) * len(self.at_ms)
            values[name] = (*first[:count], *second)
        gap_ms = max(earlier.gap_ms, self.gap_ms)
        return type(self)((*earlier.at_ms[:count], *self.at_ms), values, gap_ms).bounded()


def _pairs(column: tuple[float | None, ...]) -> tuple[float | None, ...]:
    pairs = zip(column[::2], (*column[1::2], None), strict=False)
    joined: list[float | None] = []
    for pair in pairs:
        values = [value for value in pair if value is not None]
        joined.append(sum(values) / len(values) if values else None)
    return tuple(joined)


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of a failed container. ``(pod, attempt)`` identifies it within its job."""

    pod: str
    replica: str
    container: str = ""
    attempt: int = 0
    """Earlier runs of this container in its pod."""
    at_ms: int = 0
    """When it failed."""
    lines: tuple[str, ...] = ()


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    state: str = ""
    """As in lists, such as ``RUNNING``."""
    reason: str = ""
    desired: int = 0
    world: int = 0
    """Nodes of the present world of an elastic job."""
    timeline: tuple[TimelineEntry, ...] = ()
    explanations: tuple[RecordedExplanation, ...] = ()
    replicas: tuple[ReplicaRecord, ...] = ()
    diagnosis: dict[str, Any] | None = None
    """As ``gangline diagnose -o json`` prints it."""
    goodput: dict[str, Any] | None = None
    """As in ``gangline get -o json``; elastic jobs only."""
    progress: dict[str, Any] | None = None
    curves: dict[str, Curves] = {}
    """Tables: ``usage`` (cpu, memory, gpus), ``training`` (step, loss, metrics of the script),
    ``ranks`` (lowest, median and highest step time)."""


def with_entries(record: JobRecord, entries: Iterable[TimelineEntry]) -> JobRecord:
    """Return the record with entries that it does not have, in order of time."""
    by_key = {entry.key: entry for entry in record.timeline}
    for entry in entries:
        before = by_key.get(entry.key)
        # What was observed first is nearer to the moment; a later one may know the cause.
        if before is None or (entry.cause and not before.cause):
            by_key[entry.key] = entry
    ordered = sorted(by_key.values(), key=lambda entry: (entry.at_ms, _ORDER.get(entry.what, 99)))
    return msgspec.structs.replace(record, timeline=_ends(ordered))


def with_explanation(record: JobRecord, at_ms: int, text: str) -> JobRecord:
    """Return the record with a reason to wait, unless it is the last one."""
    last = record.explanations[-1].text if record.explanations else ""
    if not text or text == last:
        return record
    explanations = _ends([*record.explanations, RecordedExplanation(at_ms, text)])
    return msgspec.structs.replace(record, explanations=explanations)


def merge_records(earlier: JobRecord, later: JobRecord) -> JobRecord:
    """Join what two processes have observed of one run; of single values the later one counts."""
    merged = with_entries(later, earlier.timeline)
    texts = {entry.at_ms: entry for entry in (*earlier.explanations, *later.explanations)}
    names = earlier.curves.keys() | later.curves.keys()
    empty = Curves()
    return msgspec.structs.replace(
        merged,
        explanations=_ends([texts[at] for at in sorted(texts)]),
        replicas=later.replicas or earlier.replicas,
        diagnosis=later.diagnosis or earlier.diagnosis,
        goodput=later.goodput or earlier.goodput,
        progress=later.progress or earlier.progress,
        curves={
            name: later.curves.get(name, empty).after(earlier.curves.get(name, empty))
            for name in sorted(names)
        },
    )


def _ends(items: list[Any]) -> tuple[Any, ...]:
    """Return at most ``MAX_ENTRIES`` items: the first tenth and the last ones."""
    if len(items) <= MAX_ENTRIES:
        return tuple(items)
    first = MAX_ENTRIES // 10
    return (*items[:first], *items[first - MAX_ENTRIES :])
