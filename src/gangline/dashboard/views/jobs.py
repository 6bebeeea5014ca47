"""The list of jobs: filters, order and pages of a hundred; the viewer's own jobs come first."""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.dashboard.views.base import Observation, Row, SeenJob, View
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
        return bool(self.phase or self.namespace or self.queue or self.kind or self.owner or self.q)

    def accepts(self, seen: SeenJob) -> bool:
        job = seen.job
        if self.phase and job.state not in self.phase:
            return False
        if self.namespace and job.namespace != self.namespace:
            return False
        if self.queue and seen.queue != self.queue:
            return False
        if self.kind and job.kind.trainer != self.kind:
            return False
        if self.owner and seen.owner != self.owner:
            return False
        text = self.q.lower()
        return not text or any(
            text in part.lower() for part in (job.name, seen.owner, job.reason) if part
        )

    def query(self, **changes: str) -> dict[str, Any]:
        """Return the parameters of an address with changes; a new selection begins at its start."""
        values = {
            "phase": [state.lower() for state in self.phase],
            "namespace": self.namespace,
            "queue": self.queue,
            "kind": self.kind,
            "owner": self.owner,
            "q": self.q,
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
        **{name: first.get(name, "") for name in ("namespace", "queue", "kind", "owner", "q")},
        after=first.get("after", ""),
    )


class JobsView(View, frozen=True):
    rows: tuple[Row, ...]
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
    keys = {id(job): _sort_key(job, shown.sort) for job in matching}
    matching.sort(key=lambda job: keys[id(job)], reverse=shown.sort.startswith("-"))
    if seen.viewer:
        matching.sort(key=lambda job: not _is_own(job, seen.viewer))
    start = _start(matching, keys, shown, seen.viewer)
    page = matching[start : start + PAGE_SIZE]
    has_more = len(matching) > start + len(page)
    last = page[-1] if page else None
    accounts = read_accounts([job.job for job in page])
    return JobsView(
        rows=tuple(job_row(job, accounts) for job in page),
        matching=len(matching),
        total=len(jobs),
        states=dict(Counter(str(job.job.state) for job in jobs)),
        filter=shown,
        next=_token(last, keys, seen.viewer) if last and has_more else "",
        namespaces=tuple(sorted({job.job.namespace for job in jobs})),
        queues=tuple(sorted({job.queue for job in jobs})),
        kinds=tuple(sorted({job.job.kind.trainer for job in jobs})),
        owners=tuple(sorted({job.owner for job in jobs} - {""})),
    )


def job_row(seen: SeenJob, accounts: Mapping[str, Goodput]) -> Row:
    """Return a job as a row, with steps and goodput if something accounts for them."""
    account = accounts.get(seen.job.uid)
    if account is None:
        return seen.row()
    job = replace(seen.job, progress=account.as_progress)
    return SeenJob(seen.entry, job).row(step=account.step, goodput=account.share)


def _is_own(seen: SeenJob, viewer: str) -> bool:
    return bool(viewer) and seen.owner == viewer


def _sort_key(seen: SeenJob, sort: str) -> tuple[Any, str, str, str]:
    job = seen.job
    return _SORTS[sort.removeprefix("-")](seen), job.namespace, job.name, job.kind.trainer


def _token(seen: SeenJob, keys: Mapping[int, tuple[Any, ...]], viewer: str) -> str:
    content = msgspec.json.encode([not _is_own(seen, viewer), *keys[id(seen)]])
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _start(
    jobs: Sequence[SeenJob], keys: Mapping[int, tuple[Any, ...]], shown: JobFilter, viewer: str
) -> int:
    """Return the index of the first row behind the continue token, whose row may be gone."""
    if not shown.after:
        return 0
    try:
        padded = shown.after + "=" * (-len(shown.after) % 4)
        not_own, *key = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=list[Any])
        reverse = shown.sort.startswith("-")
        for index, job in enumerate(jobs):
            here = (not _is_own(job, viewer), keys[id(job)])
            if here[0] == not_own and here[1] != tuple(key):
                if (here[1] > tuple(key)) is not reverse:
                    return index
            elif here[0] > not_own:
                return index
    except (ValueError, TypeError, msgspec.DecodeError):
        return 0  # a token of another order, or no token
    return len(jobs)
