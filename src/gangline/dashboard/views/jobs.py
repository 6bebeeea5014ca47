"""The list of jobs: filters, order and pages of a hundred; the viewer's own jobs come first."""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.dashboard.views.base import JobRow, Observation, SeenJob, View
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import Job, JobState

PAGE_SIZE = 100
NO_ACCOUNTS: Mapping[str, Goodput] = {}

_BEGINNING = datetime.min.replace(tzinfo=UTC)
_STATES = tuple(JobState)
_SORTS: dict[str, Callable[[SeenJob], Any]] = {
    "age": lambda seen: -(seen.job.created or _BEGINNING).timestamp(),
    "name": lambda seen: seen.job.name,
    "namespace": lambda seen: seen.job.namespace,
    "kind": lambda seen: seen.job.kind.trainer,
    "owner": lambda seen: seen.owner,
    "queue": lambda seen: seen.queue,
    "state": lambda seen: _STATES.index(seen.job.state),
    "replicas": lambda seen: -seen.job.desired,
    "gpus": lambda seen: -seen.job.requested_gpus,
}
"""Keys of the orders; a minus sign before the name of an order reverses it."""
SELECTED_BY: dict[str, Callable[[SeenJob], str]] = {
    name: _SORTS[name] for name in ("namespace", "queue", "kind", "owner")
}
"""Filters for one value."""


class JobFilter(View, frozen=True):
    """What is shown, as in the address of the page; empty values select all."""

    phase: tuple[JobState, ...] = ()
    namespace: str = ""
    queue: str = ""
    kind: str = ""
    owner: str = ""
    q: str = ""
    """Part of a name, of an owner, or of a reason."""
    sort: str = "age"
    after: str = ""
    """Continue token: the page begins behind this row."""

    @property
    def is_active(self) -> bool:
        return bool(self.phase or self.q or any(getattr(self, name) for name in SELECTED_BY))

    def accepts(self, seen: SeenJob) -> bool:
        if self.phase and seen.job.state not in self.phase:
            return False
        for name, value in SELECTED_BY.items():
            wanted = getattr(self, name)
            if wanted and value(seen) != wanted:
                return False
        text, job = self.q.lower(), seen.job
        return not text or any(text in part.lower() for part in (job.name, seen.owner, job.reason))

    def query(self, **changes: str) -> dict[str, Any]:
        """Return the parameters of an address with changes; a new selection begins at its start."""
        values = {
            "phase": [state.lower() for state in self.phase],
            **{name: getattr(self, name) for name in (*SELECTED_BY, "q")},
            "sort": "" if self.sort == "age" else self.sort,
            **changes,
        }
        return {name: value for name, value in values.items() if value}


def read_filter(query: Mapping[str, Sequence[str]]) -> JobFilter:
    """Read the filter from the parameters of an address; unknown values are ignored."""
    states = {state.lower(): state for state in JobState}
    words = [word for given in query.get("phase", ()) for word in given.split(",")]
    phase = tuple(dict.fromkeys(states[word.lower()] for word in words if word.lower() in states))
    first = {name: values[0].strip() for name, values in query.items() if values}
    sort = first.get("sort", "age")
    return JobFilter(
        phase=phase,
        sort=sort if sort.removeprefix("-") in _SORTS else "age",
        **{name: first.get(name, "") for name in (*SELECTED_BY, "q")},
        after=first.get("after", ""),
    )


class JobsView(View, frozen=True):
    rows: tuple[JobRow, ...]
    matching: int
    """Number of jobs that the filter selects."""
    total: int
    """Number of jobs that the viewer may list."""
    states: dict[str, int]
    """Number of jobs in each state, over all that the viewer may list."""
    filter: JobFilter
    next: str = ""
    """Continue token of the next page; empty on the last."""
    namespaces: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


def jobs_view(
    seen: Observation,
    shown: JobFilter,
    read_accounts: Callable[[Sequence[Job]], Mapping[str, Goodput]] = lambda jobs: NO_ACCOUNTS,
) -> JobsView:
    """Return one page of the list; ``read_accounts`` returns the goodput of jobs by UID."""
    jobs = list(seen.jobs())
    matching = [job for job in jobs if shown.accepts(job)]
    placed = [(_position(job, shown.sort, seen.viewer), job) for job in matching]
    placed.sort(key=lambda row: row[0][1], reverse=shown.sort.startswith("-"))
    placed.sort(key=lambda row: row[0][0])
    start = _start([position for position, _ in placed], shown)
    page = placed[start : start + PAGE_SIZE]
    has_more = len(placed) > start + len(page)
    token = base64.urlsafe_b64encode(msgspec.json.encode(page[-1][0])) if has_more else b""
    accounts = read_accounts([job.job for _, job in page])
    return JobsView(
        rows=tuple(job_row(job, accounts) for _, job in page),
        matching=len(matching),
        total=len(jobs),
        states=dict(Counter(str(job.job.state) for job in jobs)),
        filter=shown,
        next=token.decode().rstrip("="),
        **{
            f"{name}s": tuple(sorted({value(job) for job in jobs} - {""}))
            for name, value in SELECTED_BY.items()
        },
    )


def job_row(seen: SeenJob, accounts: Mapping[str, Goodput]) -> JobRow:
    """Return a job as a row, with steps and goodput if something accounts for them."""
    account = accounts.get(seen.job.uid)
    if account is None:
        return seen.row()
    job = replace(seen.job, progress=account.as_progress)
    return SeenJob(seen.entry, job).row(step=account.step, goodput=account.share)


def _position(seen: SeenJob, sort: str, viewer: str) -> list[Any]:
    """Return where a row stands: behind the viewer's own jobs or among them, and its key."""
    job, is_own = seen.job, bool(viewer) and seen.owner == viewer
    key = _SORTS[sort.removeprefix("-")](seen)
    return [not is_own, [key, job.namespace, job.name, job.kind.trainer]]


def _start(positions: Sequence[list[Any]], shown: JobFilter) -> int:
    """Return the index of the first row behind the continue token, whose row may be gone."""
    if not shown.after:
        return 0
    is_reversed = shown.sort.startswith("-")
    try:
        padded = shown.after + "=" * (-len(shown.after) % 4)
        not_own, key = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=list[Any])
        for index, (other, here) in enumerate(positions):
            is_behind = here < key if is_reversed else here > key
            if other > not_own or (other == not_own and here != key and is_behind):
                return index
    except (ValueError, TypeError, msgspec.DecodeError):
        return 0  # a token of another order, or no token
    return len(positions)
