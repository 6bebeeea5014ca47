"""Reads the history: runs, similar runs, days of nodes, actions.

Similar runs: ``advisers.similarity`` defines the levels and decides; the queries here return no
fewer runs than it would choose, and a bounded number of the latest ones. The keys of the levels are
columns of ``job``, so that every range is one piece of one index, whatever the size of the history.

To make a statement takes longer than to run it, so each is made once. Levels that mostly have few
runs are looked up together: one way to the server and back instead of three. Segments and pod runs
are read of those candidates that are chosen, not of all, which may be hundreds.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    false,
    or_,
    select,
    true,
    union_all,
)

from gangline.brain.advisers.advice import GuardAction, Verdict
from gangline.brain.advisers.similarity import WINDOW_MS, select_similar
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import NodeSpeed, Outcome, RecordedJob, Run
from gangline.brain.store.context import LEVEL_COLUMNS, Context, Keys
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.rows import (
    StoredJob,
    action_query,
    job_query,
    load_actions,
    load_jobs,
    load_runs,
    named_query,
    run_query,
)

_TOGETHER: Final = ((0, 1, 2), (3,), (4,))
_CANDIDATES: Final = 60
"""Successful runs of one range of level 3 or 4, the latest ones: some have other models."""
_BOUNDS: Final = 20
"""Running, failed and partly watched runs of one range, each."""


class SimilarLookup:
    """Looks for runs similar to ``run``, which must have its names as they are stored."""

    def __init__(
        self, connection: Connection, keys: Keys, run: Run, now_ms: int, limit: int
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._run = run
        self._now_ms = now_ms
        self._limit = limit

    def first(self) -> SimilarRuns | None:
        """Return the runs of the first level that has enough, with those of the levels before."""
        candidates: dict[str, StoredJob] = {}
        chosen = None
        for levels in _TOGETHER:
            new = self._candidates(levels)
            if chosen is not None and new.keys() <= candidates.keys():
                continue
            candidates |= new
            chosen = self._select(candidates.values())
            if chosen is not None and chosen.runs:
                break
        return self._load(chosen, candidates)

    def _candidates(self, levels: tuple[int, ...]) -> dict[str, StoredJob]:
        """Jobs that may be similar at some levels, by uid."""
        shifted = [self._keys.levels(self._run.job, shift) for shift in (0, -1, 1)]
        keys = {
            f"key_{level}_{number}": shifted[number][level]
            for level in levels
            for number in range(_keys_at(level))
        }
        if all(key is None for key in keys.values()):
            return {}
        parameters = keys | {
            "cluster": self._run.job.cluster,
            "uid": self._run.job.uid,
            "since_ms": self._now_ms - WINDOW_MS,
            "most": self._limit if levels[0] < 3 else max(self._limit, _CANDIDATES),
        }
        return {
            candidate.job.uid: candidate
            for candidate in load_jobs(self._connection, _query(levels), parameters)
        }

    def _select(self, candidates: Iterable[StoredJob]) -> SimilarRuns | None:
        runs = (Run(job=candidate.job) for candidate in candidates)
        return select_similar(self._run, runs, self._now_ms)

    def _load(
        self, chosen: SimilarRuns | None, candidates: Mapping[str, StoredJob]
    ) -> SimilarRuns | None:
        """Complete the chosen runs. By their segments, the nearest model is found more exactly."""
        if chosen is None:
            return None
        runs = (*chosen.runs[: self._limit], *chosen.bounds[: self._limit // 2])
        jobs = sorted(candidates[run.job.uid] for run in runs)
        return select_similar(self._run, load_runs(self._connection, jobs), self._now_ms)


@cache
def _query(levels: tuple[int, ...]) -> Select[Any]:
    ranges = [
        range_.subquery()
        for level in levels
        for key in _conditions(level)
        for range_ in _ranges(key)
    ]
    candidates = union_all(*(select(range_.c.id) for range_ in ranges)).subquery("candidates")
    return job_query().join(candidates, tables.job.c.id == candidates.c.id)


def _conditions(level: int) -> list[ColumnElement[bool]]:
    column = tables.job.c[LEVEL_COLUMNS[level]]
    return [column == bindparam(f"key_{level}_{number}") for number in range(_keys_at(level))]


def _keys_at(level: int) -> int:
    """Models are also looked for in both neighbouring ranges of parameters."""
    return 3 if level == 4 else 1


def _ranges(key: ColumnElement[bool]) -> list[Select[Any]]:
    job = tables.job.c
    other = or_(job.cluster != bindparam("cluster"), job.uid != bindparam("uid"))
    latest = select(job.id).where(key, other).order_by(job.finished_ms.desc())
    recent = latest.where(job.finished_ms >= bindparam("since_ms", type_=BigInteger))

    def part(of: Select[Any], outcome: Outcome, *, complete: bool) -> Select[Any]:
        # Equal to each column of the index before the time: no other row is read.
        whole = job.complete == (true() if complete else false())
        return of.where(job.outcome == outcome.value, whole)

    return [
        part(recent, Outcome.SUCCEEDED, complete=True).limit(bindparam("most", type_=Integer)),
        part(recent, Outcome.SUCCEEDED, complete=False).limit(_BOUNDS),
        part(recent, Outcome.FAILED, complete=True).limit(_BOUNDS),
        part(recent, Outcome.FAILED, complete=False).limit(_BOUNDS),
        part(latest, Outcome.RUNNING, complete=False).limit(_BOUNDS),
    ]


MAX_PAGE = 500
"""Rows of one answer: no query is without a limit."""
MAX_RECENT_ACTIONS = 10_000
"""The budget of the cluster allows 20 resizes an hour; other actions need no restart."""


class HistoryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs of the history. Empty and None: all."""

    cluster: str
    namespace: str = ""
    name: str = ""
    owner: str = ""
    stem: str = ""
    kind: str = ""
    queue: str = ""
    outcomes: frozenset[Outcome] = frozenset()
    """Without it, finished jobs."""
    since_ms: int | None = None
    """Finished at or after; ``until_ms``: before."""
    until_ms: int | None = None
    after_id: int | None = None
    """Of the last job of the page before, with its ``finished_ms`` as ``until_ms``."""
    limit: int = 100


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[RecordedJob, ...]
    next: HistoryFilter | None = None
    """Asks for the following page; None at the end."""


class Reader:
    def __init__(self, context: Context) -> None:
        self._context = context

    # Runs

    def run(self, cluster: str, uid: str) -> Run | None:
        return self._run(run_query(cluster, uid))

    def run_named(self, cluster: str, namespace: str, name: str) -> Run | None:
        """Return the job of this name that was submitted last; None if there is none."""
        return self._run(named_query(cluster, namespace, self._context.private_name(name)))

    def _run(self, query: Select[Any]) -> Run | None:
        def transaction(connection: Connection) -> Run | None:
            jobs = load_jobs(connection, query)
            return load_runs(connection, jobs)[0] if jobs else None

        return self._context.read(transaction)

    def similar_runs(self, job: RecordedJob, *, now_ms: int, limit: int = 20) -> SimilarRuns | None:
        """Return runs of the last 30 days that are similar to a job, best first.

        They are those of the first level of ``advisers.similarity`` with enough successful runs,
        and of the levels before it: at most ``limit``, and half as many lower bounds. The job need
        not be stored; it is never among the runs.

        Returns:
            None if nothing is similar. ``runs`` is empty if no level has enough.
        """
        stored = Run(job=self._context.private(job))
        return self._context.read(
            lambda connection: SimilarLookup(
                connection, self._context.keys, stored, now_ms, limit
            ).first()
        )

    def running_jobs(self, cluster: str, limit: int = MAX_PAGE) -> list[RecordedJob]:
        """Return jobs without an end, for a comparison with what the API server has."""

        def transaction(connection: Connection) -> list[RecordedJob]:
            job = tables.job.c
            query = (
                job_query()
                .where(job.cluster == cluster, job.finished_ms.is_(None))
                .order_by(job.id)
                .limit(limit)
            )
            return [stored.job for stored in load_jobs(connection, query)]

        return self._context.read(transaction)

    def history(self, asked: HistoryFilter) -> HistoryPage:
        """Return finished jobs, the latest first, a page at a time."""

        def transaction(connection: Connection) -> HistoryPage:
            limit = max(1, min(asked.limit, MAX_PAGE))
            stored = load_jobs(connection, self.history_query(asked).limit(limit + 1))
            if len(stored) <= limit:
                return HistoryPage(jobs=tuple(job_row.job for job_row in stored))
            last = stored[limit - 1]
            following = replace(asked, until_ms=last.job.finished_ms, after_id=last.id)
            return HistoryPage(
                jobs=tuple(job_row.job for job_row in stored[:limit]), next=following
            )

        return self._context.read(transaction)

    def history_query(self, asked: HistoryFilter) -> Select[Any]:
        """Return the statement of ``history``, for tests of its plan."""
        job = tables.job.c
        private = self._context.private_name
        query = job_query().where(job.cluster == asked.cluster, job.finished_ms.is_not(None))
        equal = {
            job.namespace: asked.namespace,
            job.owner: private(asked.owner),
            job.name: private(asked.name),
            job.stem: private(asked.stem),
            job.kind: asked.kind,
            job.queue: asked.queue,
        }
        for column, value in equal.items():
            if value:
                query = query.where(column == value)
        if asked.outcomes:
            query = query.where(job.outcome.in_(sorted(asked.outcomes)))
        if asked.since_ms is not None:
            query = query.where(job.finished_ms >= asked.since_ms)
        if asked.until_ms is not None and asked.after_id is None:
            query = query.where(job.finished_ms < asked.until_ms)
        elif asked.until_ms is not None:
            earlier = job.finished_ms < asked.until_ms
            same_time = (job.finished_ms == asked.until_ms) & (job.id < asked.after_id)
            query = query.where(job.finished_ms <= asked.until_ms, earlier | same_time)
        return query.order_by(job.finished_ms.desc(), job.id.desc())

    def node_speeds(self, cluster: str, since_day: int) -> list[NodeSpeed]:
        """Return the days of all nodes from ``since_day`` (days since 1970) on."""
        speed = tables.node_speed.c
        query = (
            select(speed.body)
            .where(speed.day >= since_day, speed.cluster == cluster)
            .order_by(speed.node, speed.day)
        )
        return self._context.read(
            lambda connection: [
                msgspec.json.decode(body, type=NodeSpeed)
                for body in connection.execute(query).scalars()
            ]
        )

    # Actions

    def open_actions(self, cluster: str) -> list[GuardAction]:
        """Return actions whose verdict is pending, oldest first."""
        action = tables.action.c
        query = action_query().where(
            tables.job.c.cluster == cluster, action.verdict == Verdict.PENDING
        )
        return self._actions(query.order_by(action.at_ms, action.id).limit(MAX_PAGE))

    def actions(
        self, cluster: str, uid: str, *, since_ms: int = 0, limit: int = 100
    ) -> list[GuardAction]:
        """Return the actions of a job from ``since_ms`` on, oldest first; the last ``limit``."""
        job, action = tables.job.c, tables.action.c
        query = (
            action_query()
            .where(job.cluster == cluster, job.uid == uid, action.at_ms >= since_ms)
            .order_by(action.at_ms.desc(), action.id.desc())
            .limit(min(limit, MAX_PAGE))
        )
        return self._actions(query)[::-1]

    def recent_actions(
        self, cluster: str, since_ms: int, limit: int = MAX_RECENT_ACTIONS
    ) -> list[GuardAction]:
        """Return the actions of all jobs from ``since_ms`` on, oldest first; the last ``limit``."""
        action = tables.action.c
        query = (
            action_query()
            .where(tables.job.c.cluster == cluster, action.at_ms >= since_ms)
            .order_by(action.at_ms.desc(), action.id.desc())
            .limit(limit)
        )
        return self._actions(query)[::-1]

    def _actions(self, query: Select[Any]) -> list[GuardAction]:
        return self._context.read(lambda connection: load_actions(connection, query))
