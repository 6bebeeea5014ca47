"""Reads the history: runs, similar runs, advice, actions, histograms, fits, prices."""

from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select

from gangline.brain.advisers.advice import (
    CURRENT_STATES,
    PENDING,
    ActionRecord,
    AdviceRecord,
)
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Job, NodeSpeed, Outcome, Run
from gangline.brain.models.histogram import Histogram
from gangline.brain.store.context import Context
from gangline.brain.store.records import (
    HISTOGRAM_KINDS,
    HISTOGRAM_VERSION,
    FitRecord,
    PriceRecord,
    Scope,
    SizingRecord,
    UsageHistogram,
)
from gangline.brain.store.similar import SimilarLookup
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.load import complete_jobs, job_query, load_jobs, load_runs
from gangline.brain.store.sql.rows import action_of, action_query, advice_of, advice_query

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


class FamilySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A family of jobs."""

    cluster: str
    namespace: str
    stem: str
    kind: str
    owner: str
    image_repository: str
    jobs: int
    last_ms: int


class Reader:
    """Reads from the database; each method is one transaction."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # Runs

    def run(self, cluster: str, uid: str) -> Run | None:
        """Return a job with its segments and pod runs; None if it is not stored."""

        def transaction(connection: Connection) -> Run | None:
            job = tables.job.c
            found = load_jobs(connection, (job.cluster == cluster) & (job.uid == uid))
            return load_runs(connection, found)[0] if found else None

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
            found = complete_jobs(connection, query)
            return load_runs(connection, found)[0] if found else None

        return self._context.read(transaction)

    def similar_runs(
        self, asked: Run | Job, *, now_ms: int, level: int | None = None, limit: int = 20
    ) -> SimilarRuns | None:
        """Return runs of the last 30 days that are similar to a job, best first.

        Args:
            asked: the job, which need not be stored; it is never among the runs.
            now_ms: the present time.
            level: only runs of this level of ``advisers.similarity``; None: the first level with
                enough successful runs, and the levels before it.
            limit: the most runs; half of it is the most lower bounds.

        Returns:
            None if nothing is similar. ``runs`` is empty if no level has enough.
        """
        run = asked if isinstance(asked, Run) else Run(job=asked)
        stored = msgspec.structs.replace(run, job=self._context.private(run.job))

        def transaction(connection: Connection) -> SimilarRuns | None:
            lookup = SimilarLookup(connection, self._context.keys, stored, now_ms, limit)
            return lookup.first() if level is None else lookup.level(level)

        return self._context.read(transaction)

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
            return [complete_job.job for complete_job in complete_jobs(connection, query)]

        return self._context.read(transaction)

    def history(self, asked: HistoryFilter) -> HistoryPage:
        """Return finished jobs, the latest first, a page at a time."""

        def transaction(connection: Connection) -> HistoryPage:
            limit = max(1, min(asked.limit, MAX_PAGE))
            found = complete_jobs(connection, self.history_query(asked).limit(limit + 1))
            if len(found) <= limit:
                return HistoryPage(jobs=tuple(each.job for each in found))
            last = found[limit - 1]
            following = msgspec.structs.replace(
                asked, until_ms=last.job.finished_ms, after_id=last.id
            )
            return HistoryPage(jobs=tuple(each.job for each in found[:limit]), next=following)

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

    def family(self, job: Job) -> FamilySummary | None:
        """Return the family of ``job``, which need not be stored; None if it has no jobs yet."""
        digest = self._context.keys.family(self._context.private(job))
        query = select(tables.family).where(tables.family.c.digest == digest)
        found = self._families(query)
        return found[0] if found else None

    def families(self, cluster: str, namespace: str, stem: str = "") -> list[FamilySummary]:
        """Return families of a namespace, by stem."""
        family = tables.family.c
        query = (
            select(tables.family)
            .where(family.cluster == cluster, family.namespace == namespace)
            .order_by(family.stem, family.id)
            .limit(MAX_PAGE)
        )
        if stem:
            query = query.where(family.stem == self._context.private_name(stem))
        return self._families(query)

    def _families(self, query: Select[Any]) -> list[FamilySummary]:
        return self._context.read(
            lambda connection: [
                msgspec.convert(row, FamilySummary, from_attributes=True)
                for row in connection.execute(query)
            ]
        )

    def node_speeds(self, cluster: str, since_day: int) -> list[NodeSpeed]:
        """Return the days of all nodes from ``since_day`` (days since 1970) on."""
        node, speed = tables.node.c, tables.node_speed.c
        query = (
            select(tables.node_speed, node.name, node.device_model)
            .join_from(tables.node_speed, tables.node)
            .where(speed.day >= since_day, node.cluster == cluster)
            .order_by(node.name, speed.day)
        )
        return self._context.read(
            lambda connection: [
                rows.speed_of(row, row["name"], row["device_model"])
                for row in connection.execute(query).mappings()
            ]
        )

    # Advice and actions

    def open_advice(self, cluster: str, uid: str) -> list[AdviceRecord]:
        """Return the open and held advice of a job, in the order in which it was given."""
        job, advice = tables.job.c, tables.advice.c
        query = (
            advice_query()
            .where(job.cluster == cluster, job.uid == uid)
            .where(advice.state.in_(sorted(CURRENT_STATES)))
            .order_by(advice.id)
            .limit(MAX_PAGE)
        )
        return self._advice(query)

    def advice_history(self, cluster: str, uid: str, limit: int = 100) -> list[AdviceRecord]:
        """Return all advice of a job, the latest first."""
        job, advice = tables.job.c, tables.advice.c
        query = (
            advice_query()
            .where(job.cluster == cluster, job.uid == uid)
            .order_by(advice.id.desc())
            .limit(min(limit, MAX_PAGE))
        )
        return self._advice(query)

    def _advice(self, query: Select[Any]) -> list[AdviceRecord]:
        return self._context.read(
            lambda connection: [advice_of(row) for row in connection.execute(query).mappings()]
        )

    def open_actions(
        self, cluster: str, *, watched_since_ms: int | None = None
    ) -> list[ActionRecord]:
        """Return actions whose verdict is pending, oldest first.

        Args:
            cluster: the cluster.
            watched_since_ms: adds actions that were judged at or after this time, because what was
                kept is watched for a while.
        """
        action = tables.action.c
        query = action_query().where(tables.job.c.cluster == cluster, action.verdict == PENDING)
        found = self._actions(query.order_by(action.at_ms, action.id).limit(MAX_PAGE))
        if watched_since_ms is None:
            return found
        judged = (
            action_query()
            .where(tables.job.c.cluster == cluster, action.verdict != PENDING)
            .where(action.judged_ms >= watched_since_ms)
            .order_by(action.at_ms, action.id)
            .limit(MAX_PAGE)
        )
        return sorted([*found, *self._actions(judged)], key=lambda each: (each.at_ms, each.id))

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

    # What was learned

    def histograms(self, job: Job, scope: Scope = Scope.FAMILY) -> list[UsageHistogram]:
        """Return the histograms of a job, or of its family; ``job`` need not be stored."""
        histogram = tables.usage_histogram
        query = (
            select(histogram)
            .where(histogram.c.scope_type == scope.value)
            .where(histogram.c.version == HISTOGRAM_VERSION)
            .where(histogram.c.scope_id == self._scope(job, scope))
            .order_by(histogram.c.role, histogram.c.resource)
        )
        return self._context.read(
            lambda connection: [_histogram(row) for row in connection.execute(query).mappings()]
        )

    def fits(self, job: Job, scope: Scope = Scope.FAMILY) -> list[FitRecord]:
        """Return the fits of a job, or of its family; ``job`` need not be stored."""
        query = (
            select(tables.fit)
            .where(tables.fit.c.scope_type == scope.value)
            .where(tables.fit.c.scope_id == self._scope(job, scope))
            .order_by(tables.fit.c.model, tables.fit.c.version)
        )
        return self._context.read(
            lambda connection: [_fit(row) for row in connection.execute(query).mappings()]
        )

    def prices(
        self, cluster: str, resource: str, since_ms: int, *, hourly: bool = False
    ) -> list[PriceRecord]:
        """Return prices from ``since_ms`` on, oldest first, at most 10,000."""
        price = tables.price.c
        query = (
            select(tables.price)
            .where(price.cluster == cluster, price.resource == resource)
            .where(price.hourly == hourly, price.at_ms >= since_ms)
            .order_by(price.at_ms)
            .limit(10_000)
        )
        return self._context.read(
            lambda connection: [
                msgspec.convert(row, PriceRecord, from_attributes=True)
                for row in connection.execute(query)
            ]
        )

    def sizings(self, cluster: str, uid: str) -> list[SizingRecord]:
        """Return predictions for a job, oldest first."""
        job = tables.job.c
        query = (
            select(tables.sizing)
            .join_from(tables.sizing, tables.job)
            .where(job.cluster == cluster, job.uid == uid)
            .order_by(tables.sizing.c.at_ms)
            .limit(MAX_PAGE)
        )
        return self._context.read(
            lambda connection: [_sizing(row) for row in connection.execute(query).mappings()]
        )

    def _scope(self, job: Job, scope: Scope) -> Any:
        if scope is Scope.FAMILY:
            digest = self._context.keys.family(self._context.private(job))
            family = tables.family.c
            return select(family.id).where(family.digest == digest).scalar_subquery()
        column = tables.job.c
        return (
            select(column.id)
            .where(column.cluster == job.cluster, column.uid == job.uid)
            .scalar_subquery()
        )


def _histogram(row: Any) -> UsageHistogram:
    histogram = Histogram.decode(
        HISTOGRAM_KINDS[row["resource"]],
        bytes(row["buckets"]),
        peak=row["peak"],
        first_ms=row["first_ms"] or 0,
        last_ms=row["last_ms"] or 0,
        count=row["count"],
    )
    return UsageHistogram(role=row["role"], resource=row["resource"], histogram=histogram)


def _fit(row: Any) -> FitRecord:
    return FitRecord(
        model=row["model"],
        version=row["version"],
        parameters=msgspec.json.decode(row["parameters"]),
        covariance=msgspec.json.decode(row["covariance"]) if row["covariance"] else None,
        points=row["points"],
        error=row["error"],
        at_ms=row["at_ms"],
        validity=msgspec.json.decode(row["validity"] or "{}"),
    )


def _sizing(row: Any) -> SizingRecord:
    return SizingRecord(
        at_ms=row["at_ms"],
        predicted=msgspec.json.decode(row["predicted"]),
        measured=msgspec.json.decode(row["measured"]) if row["measured"] else None,
    )
