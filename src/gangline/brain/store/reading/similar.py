"""Candidates for the runs that a job is compared with: ranges of an index for each level.

``advisers.similarity`` defines the levels and decides; the queries here return no fewer runs than
it would choose, and a bounded number of the latest ones. The keys of the levels are columns of
``job``, so that every range is one piece of one index, whatever the size of the history.

To make a statement takes longer than to run it, so each is made once. Levels that mostly have few
runs are looked up together: one way to the server and back instead of three.
"""

from collections.abc import Sequence
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

from gangline.brain.advisers.similarity import WINDOW_MS, select_similar, similarity_level
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Outcome, Run
from gangline.brain.store.keys import Keys
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.load import StoredJob, load_numbered_jobs, load_runs

LEVELS: Final = (0, 1, 2, 3, 4)
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
        found: dict[int, StoredJob] = {}
        chosen = None
        for levels in _TOGETHER:
            new = [number for number in self._candidates(levels) if number not in found]
            if not new and chosen is not None:
                continue
            found |= {each.id: each for each in load_numbered_jobs(self._connection, new)}
            chosen = self._select([Run(job=each.job) for each in found.values()])
            if chosen is not None and chosen.runs:
                break
        return self._load(chosen, list(found.values()))

    def level(self, level: int) -> SimilarRuns | None:
        """Return the runs of one level only; None if there are none."""
        found = [
            each
            for each in load_numbered_jobs(self._connection, self._candidates((level,)))
            if similarity_level(self._run, Run(job=each.job)) == level
        ]
        return self._load(self._select([Run(job=each.job) for each in found]), found)

    def _candidates(self, levels: tuple[int, ...]) -> list[int]:
        """Numbers of the jobs that may be similar at some levels, in ascending order."""
        keys = {
            f"key_{level}_{number}": key
            for level in levels
            for number, key in enumerate(self._keys_of(level))
        }
        if all(key is None for key in keys.values()):
            return []
        parameters = keys | {
            "cluster": self._run.job.cluster,
            "uid": self._run.job.uid,
            "since_ms": self._now_ms - WINDOW_MS,
            "most": self._limit if levels[0] < 3 else max(self._limit, _CANDIDATES),
        }
        return sorted(set(self._connection.execute(_query(levels), parameters).scalars()))

    def _keys_of(self, level: int) -> list[int | str | None]:
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


@cache
def _query(levels: tuple[int, ...]) -> Select[Any]:
    """Return the statement for the candidates of some levels."""
    ranges = [
        each.subquery() for level in levels for key in _conditions(level) for each in _ranges(key)
    ]
    return select(union_all(*(select(each.c.id) for each in ranges)).subquery().c.id)


def _conditions(level: int) -> list[ColumnElement[bool]]:
    job = tables.job.c
    match level:
        case 0:
            column = job.spec_key
        case 1:
            digest = tables.family.c.digest == bindparam("key_1_0")
            return [job.family_id == select(tables.family.c.id).where(digest).scalar_subquery()]
        case 2:
            column = job.base_key
        case 3:
            column = job.image_key
        case _:
            column = job.model_key
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
