"""Candidates for the runs that a job is compared with: ranges of an index for each level.

``advisers.similarity`` defines the levels and decides; the queries here return no fewer runs than
it would choose, and a bounded number of the latest ones. The keys of the levels are columns of
``job``, so that every range is one piece of one index, whatever the size of the history.

To make a statement takes longer than to run it, so each is made once. Levels that mostly have few
runs are looked up together: one way to the server and back instead of three. Segments and pod runs
are read of those candidates that are chosen, not of all, which may be hundreds.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

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

from gangline.brain.advisers.similarity import WINDOW_MS, select_similar
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Outcome, Run
from gangline.brain.store.context import Keys
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.load import StoredJob, job_query, load_jobs, load_runs

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
        keys = {
            f"key_{level}_{number}": key
            for level in levels
            for number, key in enumerate(self._keys_of(level))
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

    def _keys_of(self, level: int) -> list[int | None]:
        """Keys of the level; None is equal to no key."""
        keys, asked = self._keys, self._run.job
        match level:
            case 0:
                return [keys.specification(asked)]
            case 1:
                return [keys.family(asked)]
            case 2:
                return [keys.base(asked)]
            case 3:
                return [keys.image(asked)]
            case _:
                return [keys.model(asked, shift) for shift in (-1, 0, 1)]

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
    """Return the statement for the candidates of some levels."""
    ranges = [
        range_.subquery()
        for level in levels
        for key in _conditions(level)
        for range_ in _ranges(key)
    ]
    candidates = union_all(*(select(range_.c.id) for range_ in ranges)).subquery("candidates")
    return job_query().join(candidates, tables.job.c.id == candidates.c.id)


def _conditions(level: int) -> list[ColumnElement[bool]]:
    job = tables.job.c
    column = (job.spec_key, job.family_key, job.base_key, job.image_key, job.model_key)[level]
    count = 3 if level == 4 else 1
    return [column == bindparam(f"key_{level}_{number}") for number in range(count)]


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
