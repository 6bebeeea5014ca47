"""The list of jobs: filters, order and pages of a hundred; the viewer's own jobs come first."""

import base64
import heapq
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gangline.dashboard.views.base import JobRow, Observation, SeenJob, View
from gangline.sdk.goodput import Goodput
from gangline.sdk.jobs import Job, JobState

PAGE_SIZE = 100
NO_ACCOUNTS: Mapping[str, Goodput] = {}

_STATES = {str(state): place for place, state in enumerate(JobState)}
_SORTS: dict[str, Callable[[SeenJob], Any]] = {
    "age": operator.attrgetter("place"),
    "name": lambda seen: seen.job.name,
    "namespace": operator.attrgetter("namespace"),
    "kind": operator.attrgetter("kind"),
    "owner": operator.attrgetter("owner"),
    "queue": operator.attrgetter("queue"),
    "state": lambda seen: _STATES[seen.state],
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
    matching = [job for job in jobs if shown.accepts(job)] if shown.is_active else jobs
    try:
        rows = _rows(matching, shown.sort, seen.viewer, *_read_token(shown.after))
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError):
        # A token of another order, or no token.
        rows = _rows(matching, shown.sort, seen.viewer)
    page, token = rows[:PAGE_SIZE], b""
    if len(rows) > PAGE_SIZE:
        last = page[-1]
        is_other = not seen.viewer or last.owner != seen.viewer
        position = is_other, _position(shown.sort)(last)
        token = base64.urlsafe_b64encode(msgspec.json.encode(position))
    accounts = read_accounts([job.job for job in page])
    return JobsView(
        rows=tuple(job_row(job, accounts) for job in page),
        matching=len(matching),
        total=len(jobs),
        states=dict(Counter([job.state for job in jobs])),
        filter=shown,
        next=token.decode().rstrip("="),
        **{
            f"{name}s": tuple(sorted(set(map(value, jobs)) - {""}))
            for name, value in SELECTED_BY.items()
        },
    )


def job_row(seen: SeenJob, accounts: Mapping[str, Goodput]) -> JobRow:
    """Return a job as a row, with steps and goodput if something accounts for them."""
    row, account = seen.row(), accounts.get(seen.job.uid)
    if account is None:
        return row
    progress = account.as_progress.summary
    return replace(row, step=account.step, goodput=account.share, progress=progress)


def _position(sort: str) -> Callable[[SeenJob], tuple[Any, ...]]:
    """Return the function of a row's position among the viewer's own jobs, or among the others."""
    key = _SORTS[sort.removeprefix("-")]
    if sort.removeprefix("-") == "age":
        return key
    return lambda seen: (key(seen), seen.namespace, seen.job.name, seen.kind)


def _rows(
    jobs: Sequence[SeenJob],
    sort: str,
    viewer: str,
    after_others: bool | None = None,
    after: tuple[Any, ...] = (),
) -> list[SeenJob]:
    """Return the rows of a page and one more: the viewer's own jobs, then the others.

    Args:
        after_others: whether the row before the page is one of the others; None: there is none.
        after: the position of that row, which may be gone.
    """
    position, is_reversed = _position(sort), sort.startswith("-")
    choose = heapq.nlargest if is_reversed else heapq.nsmallest
    own = [job for job in jobs if job.owner == viewer] if viewer else []
    others = [job for job in jobs if job.owner != viewer] if own else jobs
    rows: list[SeenJob] = []
    for is_other, group in enumerate((own, others)):
        if after_others is not None and is_other < after_others:
            continue
        behind = group
        if is_other == after_others:
            compare = operator.lt if is_reversed else operator.gt
            behind = [job for job in group if compare(position(job), after)]
        rows += choose(PAGE_SIZE + 1 - len(rows), behind, key=position)
    return rows


def _read_token(text: str) -> tuple[bool | None, tuple[Any, ...]]:
    """Read a continue token."""
    if not text:
        return None, ()
    padded = text + "=" * (-len(text) % 4)
    return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[bool, tuple[Any, ...]])
