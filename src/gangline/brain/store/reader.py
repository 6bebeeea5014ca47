"""Reads the history: runs, similar runs, days of nodes, actions."""

from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select

from gangline.brain.advisers.advice import PENDING, ActionRecord
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Job, NodeSpeed, Outcome, Run
from gangline.brain.store.context import Context
from gangline.brain.store.similar import SimilarLookup
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.load import job_query, load_jobs, load_runs
from gangline.brain.store.sql.rows import action_of, action_query

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
    """Jobs of the history, the latest first."""

    jobs: tuple[Job, ...]
    next: HistoryFilter | None = None
    """Asks for the following page; None at the end."""


class Reader:
    """Reads from the database; each method is one transaction."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # Runs

    def run(self, cluster: str, uid: str) -> Run | None:
        """Return a job with its segments and pod runs; None if it is not stored."""

        def transaction(connection: Connection) -> Run | None:
            job = tables.job.c
            query = job_query().where(job.cluster == cluster, job.uid == uid)
            jobs = load_jobs(connection, query)
            return load_runs(connection, jobs)[0] if jobs else None

        return self._context.read(transaction)

    def run_named(self, cluster: str, namespace: str, name: str) -> Run | None:
        """Return the job of this name that was submitted last; None if there is none."""

        def transaction(connection: Connection) -> Run | None:
            job = tables.job.c
            query = (
                job_query()
                .where(job.cluster == cluster, job.namespace == namespace)
                .where(job.name == self._context.private_name(name))
                .order_by(job.submitted_ms.desc())
                .limit(1)
            )
            jobs = load_jobs(connection, query)
            return load_runs(connection, jobs)[0] if jobs else None

        return self._context.read(transaction)

    def similar_runs(self, job: Job, *, now_ms: int, limit: int = 20) -> SimilarRuns | None:
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

    def running_jobs(self, cluster: str, limit: int = MAX_PAGE) -> list[Job]:
        """Return jobs without an end, for a comparison with what the API server has."""

        def transaction(connection: Connection) -> list[Job]:
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
            following = msgspec.structs.replace(
                asked, until_ms=last.job.finished_ms, after_id=last.id
            )
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

    # Advice and actions

    def open_actions(self, cluster: str) -> list[ActionRecord]:
        """Return actions whose verdict is pending, oldest first."""
        action = tables.action.c
        query = action_query().where(tables.job.c.cluster == cluster, action.verdict == PENDING)
        return self._actions(query.order_by(action.at_ms, action.id).limit(MAX_PAGE))

    def actions(
        self, cluster: str, uid: str, *, since_ms: int = 0, limit: int = 100
    ) -> list[ActionRecord]:
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
    ) -> list[ActionRecord]:
        """Return the actions of all jobs from ``since_ms`` on, oldest first; the last ``limit``."""
        action = tables.action.c
        query = (
            action_query()
            .where(tables.job.c.cluster == cluster, action.at_ms >= since_ms)
            .order_by(action.at_ms.desc(), action.id.desc())
            .limit(limit)
        )
        return self._actions(query)[::-1]

    def _actions(self, query: Select[Any]) -> list[ActionRecord]:
        return self._context.read(
            lambda connection: [action_of(row) for row in connection.execute(query).mappings()]
        )
