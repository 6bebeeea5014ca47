"""Candidates for the runs that a job is compared with: ranges of an index for each level.

``advisers.similarity`` defines the levels and decides; the queries here return no fewer runs than
it would choose, and a bounded number of the latest ones. The keys of the levels are columns of
``job``, so that every range is one piece of one index, whatever the size of the history.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, or_, select, union_all

from gangline.brain.advisers.similarity import WINDOW_MS, select_similar, similarity_level
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Outcome, Run
from gangline.brain.store.keys import Keys
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.load import StoredJob, load_jobs, load_runs

LEVELS: Final = (0, 1, 2, 3, 4)
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
        found: dict[int, StoredJob] = {}
        chosen = None
        for level in LEVELS:
            found |= {each.id: each for each in self._candidates(level)}
            chosen = self._select([Run(job=each.job) for each in found.values()])
            if chosen is not None and chosen.runs:
                break
        return self._load(chosen, list(found.values()))

    def level(self, level: int) -> SimilarRuns | None:
        """Return the runs of one level only; None if there are none."""
        found = [
            each
            for each in self._candidates(level)
            if similarity_level(self._run, Run(job=each.job)) == level
        ]
        return self._load(self._select([Run(job=each.job) for each in found]), found)

    def query(self, level: int) -> Select[Any] | None:
        """Return the statement for the candidates of a level; None if nothing can be similar."""
        ranges = [
            each.subquery() for key in self._keys_of(level) for each in self._ranges(level, key)
        ]
        if not ranges:
            return None
        return select(union_all(*(select(each.c.id) for each in ranges)).subquery().c.id)

    def _candidates(self, level: int) -> list[StoredJob]:
        query = self.query(level)
        if query is None:
            return []
        ids = sorted(set(self._connection.execute(query).scalars()))
        return load_jobs(self._connection, tables.job.c.id.in_(ids)) if ids else []

    def _keys_of(self, level: int) -> list[ColumnElement[bool]]:
        job, keys, asked = tables.job.c, self._keys, self._run.job
        if level == 1:
            family = tables.family.c
            query = select(family.id).where(family.digest == keys.family(asked))
            return [job.family_id == query.scalar_subquery()]
        values: list[int | None]
        match level:
            case 0:
                column, values = job.spec_key, [keys.specification(asked)]
            case 2:
                column, values = job.base_key, [keys.base(asked)]
            case 3:
                column, values = job.image_key, [keys.image(asked)]
            case _:
                column = job.model_key
                values = [keys.model(asked, shift) for shift in (-1, 0, 1)]
        return [column == value for value in values if value is not None]

    def _ranges(self, level: int, key: ColumnElement[bool]) -> list[Select[Any]]:
        job = tables.job.c
        other = or_(job.cluster != self._run.job.cluster, job.uid != self._run.job.uid)
        latest = select(job.id).where(key, other).order_by(job.finished_ms.desc())
        recent = latest.where(job.finished_ms >= self._now_ms - WINDOW_MS)
        succeeded = recent.where(job.outcome == Outcome.SUCCEEDED.value)
        most = self._limit if level < 3 else max(self._limit, _CANDIDATES)
        return [
            succeeded.where(job.complete.is_(True)).limit(most),
            succeeded.where(job.complete.is_(False)).limit(_BOUNDS),
            recent.where(job.outcome == Outcome.FAILED.value).limit(_BOUNDS),
            latest.where(job.outcome == Outcome.RUNNING.value).limit(_BOUNDS),
        ]

    def _select(self, runs: Sequence[Run]) -> SimilarRuns | None:
        return select_similar(self._run, runs, self._now_ms)

    def _load(self, chosen: SimilarRuns | None, found: Sequence[StoredJob]) -> SimilarRuns | None:
        """Add segments and pod runs, by which the nearest model is measured more exactly."""
        if chosen is None:
            return None
        runs = (*chosen.runs[: self._limit], *chosen.bounds[: self._limit // 2])
        uids = {run.job.uid for run in runs}
        return self._select(
            load_runs(self._connection, [each for each in found if each.job.uid in uids])
        )
