"""Reads the history: runs, similar runs, days of nodes, actions.

Similar runs: ``advisers.similarity`` defines the levels and decides; the queries here return no
fewer runs than it would choose, and a bounded number of the latest ones. The keys of the levels are
columns of ``job``, so that every range is one piece of one index, whatever the size of the history.

To make a statement takes longer than to run it, so each is made once. Segments and pod runs are
read of those candidates that are chosen, not of all, which may be hundreds.
"""

from functools import cache
from typing import Annotated, Any, Final

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
from gangline.brain.store.context import Context
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.rows import (
    StoredJob,
    action_query,
    job_query,
    load_actions,
    load_jobs,
    load_runs,
    run_query,
)
from gangline.brain.store.sql.tables import LEVEL_COLUMNS

_CANDIDATES: Final = 60
"""Successful runs of one range of level 3 or 4, the latest ones: some have other models."""
_BOUNDS: Final = 20
"""Running, failed and partly watched runs of one range, each."""


@cache
def _query(level: int) -> Select[Any]:
    """Select the jobs that may be similar at a level, by ``key``."""
    ranges = [range_.subquery() for range_ in _ranges(tables.job.c[LEVEL_COLUMNS[level]])]
    candidates = union_all(*(select(range_.c.id) for range_ in ranges)).subquery("candidates")
    return job_query().join(candidates, tables.job.c.id == candidates.c.id)


def _ranges(column: ColumnElement[Any]) -> list[Select[Any]]:
    job = tables.job.c
    other = or_(job.cluster != bindparam("cluster"), job.uid != bindparam("uid"))
    latest = select(job.id).where(column == bindparam("key"), other)
    latest = latest.order_by(job.finished_ms.desc())
    recent = latest.where(job.finished_ms >= bindparam("since_ms", type_=BigInteger))

    kinds: list[tuple[Select[Any], Outcome, ColumnElement[bool]]] = [
        (recent, Outcome.SUCCEEDED, true()),
        (recent, Outcome.SUCCEEDED, false()),
        (recent, Outcome.FAILED, true()),
        (recent, Outcome.FAILED, false()),
        (latest, Outcome.RUNNING, false()),
    ]
    # Equal to each column of the index before the time: no other row is read.
    parts = [of.where(job.outcome == end.value, job.complete == whole) for of, end, whole in kinds]
    most = bindparam("most", type_=Integer)
    return [parts[0].limit(most), *(part.limit(_BOUNDS) for part in parts[1:])]


MAX_PAGE = 500
"""Rows of one answer: no query is without a limit."""
MAX_RECENT_ACTIONS = 10_000
"""The budget of the cluster allows 20 resizes an hour; other actions need no restart."""


GivenNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]


class HistoryFilter(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"since_ms": "since", "until_ms": "until", "after_id": "after"},
):
    """Which jobs of the history, as the query of a request names them. Empty and None: all."""

    cluster: str
    namespace: str = ""
    name: str = ""
    owner: str = ""
    stem: str = ""
    kind: str = ""
    queue: str = ""
    outcome: Outcome | None = None
    """None: finished jobs."""
    since_ms: GivenNumber | None = None
    """Finished at or after; ``until_ms``: before."""
    until_ms: GivenNumber | None = None
    after_id: GivenNumber | None = None
    """Of the last job of the page before, with its ``finished_ms`` as ``until_ms``."""
    limit: GivenNumber = 100


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[RecordedJob, ...]
    next: HistoryFilter | None = None
    """Asks for the following page; None at the end."""


class Reader:
    def __init__(self, context: Context) -> None:
        self._context = context

    # Runs

    def run(
        self, cluster: str, uid: str = "", *, namespace: str = "", name: str = ""
    ) -> Run | None:
        """Return a run by its uid, or of the jobs of a name the one that was submitted last."""
        query = run_query(cluster, uid, namespace, self._context.private_name(name))
        runs = self._context.read(lambda conn: load_runs(conn, load_jobs(conn, query)))
        return runs[0] if runs else None

    def similar_runs(self, job: RecordedJob, *, now_ms: int, limit: int = 20) -> SimilarRuns:
        """Return runs of the last 30 days that are similar to a job, best first.

        They are those of the first level of ``advisers.similarity`` with enough successful runs,
        and of the levels before it: at most ``limit``, and half as many lower bounds. The job need
        not be stored; it is never among the runs.

        Returns:
            None if nothing is similar. ``runs`` is empty if no level has enough.
        """
        asked = Run(job=self._context.private(job))

        def transaction(connection: Connection) -> SimilarRuns:
            candidates: dict[str, StoredJob] = {}
            chosen = SimilarRuns()
            for level in range(len(LEVEL_COLUMNS)):
                new = self._candidates(connection, asked.job, level, now_ms, limit)
                if new.keys() <= candidates.keys():
                    continue
                candidates |= new
                runs = (Run(job=candidate.job) for candidate in candidates.values())
                chosen = select_similar(asked, runs, now_ms)
                if chosen.runs:
                    break
            found = (*chosen.runs[:limit], *chosen.bounds[: limit // 2])
            jobs = sorted(candidates[run.job.uid] for run in found)
            # By their segments, the nearest model is found more exactly.
            return select_similar(asked, load_runs(connection, jobs), now_ms) if jobs else chosen

        return self._context.read(transaction)

    def _candidates(
        self, connection: Connection, job: RecordedJob, level: int, now_ms: int, limit: int
    ) -> dict[str, StoredJob]:
        """Return jobs that may be similar at a level, by uid."""
        # Models are also looked for in both neighbouring ranges of parameters.
        shifts = (0, -1, 1) if level == 4 else (0,)
        parameters = {
            "cluster": job.cluster,
            "uid": job.uid,
            "since_ms": now_ms - WINDOW_MS,
            "most": limit if level < 3 else max(limit, _CANDIDATES),
        }
        return {
            candidate.job.uid: candidate
            for shift in shifts
            if (key := self._context.keys.levels(job, shift)[level]) is not None
            for candidate in load_jobs(connection, _query(level), parameters | {"key": key})
        }

    def running_jobs(self, cluster: str, limit: int = MAX_PAGE) -> list[RecordedJob]:
        """Return jobs without an end, for a comparison with what the API server has."""
        job = tables.job.c
        running = job_query().where(job.cluster == cluster, job.finished_ms.is_(None))
        query = running.order_by(job.id).limit(limit)
        return [stored.job for stored in self._context.read(lambda conn: load_jobs(conn, query))]

    def history(self, asked: HistoryFilter) -> HistoryPage:
        """Return finished jobs, the latest first, a page at a time."""
        job, asked = tables.job.c, self._context.private(asked)
        query = job_query().where(job.cluster == asked.cluster, job.finished_ms.is_not(None))
        for name in ("namespace", "owner", "name", "stem", "kind", "queue"):
            if value := getattr(asked, name):
                query = query.where(job[name] == value)
        if asked.outcome is not None:
            query = query.where(job.outcome == asked.outcome.value)
        if asked.since_ms is not None:
            query = query.where(job.finished_ms >= asked.since_ms)
        if asked.until_ms is not None:
            is_earlier = job.finished_ms < asked.until_ms
            if asked.after_id is not None:
                is_last = job.finished_ms == asked.until_ms
                is_earlier |= is_last & (job.id < asked.after_id)
            query = query.where(is_earlier)
        limit = max(1, min(asked.limit, MAX_PAGE))
        latest = query.order_by(job.finished_ms.desc(), job.id.desc()).limit(limit + 1)
        stored = self._context.read(lambda connection: load_jobs(connection, latest))
        page = HistoryPage(jobs=tuple(row.job for row in stored[:limit]))
        if len(stored) <= limit:
            return page
        last = stored[limit - 1]
        return replace(page, next=replace(asked, until_ms=last.job.finished_ms, after_id=last.id))

    def node_speeds(self, cluster: str, since_day: int) -> list[NodeSpeed]:
        """Return the days of all nodes from ``since_day`` (days since 1970) on."""
        speed = tables.node_speed.c
        asked = select(speed.body).where(speed.day >= since_day, speed.cluster == cluster)
        query = asked.order_by(speed.node, speed.day)
        bodies = self._context.read(lambda connection: list(connection.execute(query).scalars()))
        return [msgspec.json.decode(body, type=NodeSpeed) for body in bodies]

    # Actions

    def open_actions(self, cluster: str) -> list[GuardAction]:
        """Return actions whose verdict is pending, oldest first."""
        return self._actions(cluster, MAX_PAGE, tables.action.c.verdict == Verdict.PENDING)

    def actions(self, cluster: str, uid: str, *, since_ms: int = 0) -> list[GuardAction]:
        """Return the actions of a job from ``since_ms`` on, oldest first; the last 500."""
        is_asked = (tables.job.c.uid == uid) & (tables.action.c.at_ms >= since_ms)
        return self._actions(cluster, MAX_PAGE, is_asked)

    def recent_actions(
        self, cluster: str, since_ms: int, limit: int = MAX_RECENT_ACTIONS
    ) -> list[GuardAction]:
        """Return the actions of all jobs from ``since_ms`` on, oldest first; the last ``limit``."""
        return self._actions(cluster, limit, tables.action.c.at_ms >= since_ms)

    def _actions(
        self, cluster: str, limit: int, is_asked: ColumnElement[bool]
    ) -> list[GuardAction]:
        action = tables.action.c
        query = action_query().where(tables.job.c.cluster == cluster, is_asked)
        last = query.order_by(action.at_ms.desc(), action.id.desc()).limit(limit)
        return self._context.read(lambda connection: load_actions(connection, last))[::-1]
