"""Candidates for the runs that a job is compared with: ranges of an index for each level.

``advisers.similarity`` defines the levels and decides; the queries here return no fewer runs than
it would choose, and a bounded number of the latest ones. The keys of the levels are columns of
``job``, so that every range is one piece of one index, whatever the size of the history.

To make a statement takes longer than to run it, so each is made once. Levels that mostly have few
runs are looked up together: one way to the server and back instead of three. Of the candidates,
which may be hundreds, only what the levels compare is read; of those that are chosen, everything.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

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
from gangline.brain.facts.records import Image, Job, ModelFacts, Outcome, RoleSize, Run
from gangline.brain.store.context import Keys, gpu_model
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.load import load_numbered_jobs, load_runs, mappings

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
        candidates: dict[str, _Candidate] = {}
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

    def _candidates(self, levels: tuple[int, ...]) -> dict[str, "_Candidate"]:
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
        models = frozenset(self._keys_of(4))
        device = gpu_model(self._run.job)
        rows = mappings(self._connection.execute(_query(levels), parameters))
        return {
            row["uid"]: _candidate(row, device if row["model_key"] in models else "")
            for row in rows
        }

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

    def _select(self, candidates: Iterable["_Candidate"]) -> SimilarRuns | None:
        return select_similar(self._run, (candidate.run for candidate in candidates), self._now_ms)

    def _load(
        self, chosen: SimilarRuns | None, candidates: Mapping[str, "_Candidate"]
    ) -> SimilarRuns | None:
        """Read the chosen runs. By their segments, the nearest model is measured more exactly."""
        if chosen is None:
            return None
        runs = (*chosen.runs[: self._limit], *chosen.bounds[: self._limit // 2])
        jobs = load_numbered_jobs(
            self._connection, sorted(candidates[run.job.uid].id for run in runs)
        )
        return select_similar(self._run, load_runs(self._connection, jobs), self._now_ms)


class _Candidate(NamedTuple):
    """A job of a range: its number, and what the levels compare of it."""

    id: int
    run: Run


_PLAIN: Final = (
    *("cluster", "uid", "namespace", "stem", "kind", "strategy", "owner", "command_digest"),
    *("spec_digest", "submitted_ms", "started_ms", "finished_ms"),
)
"""Columns of a job that the levels compare, as they are."""
_COMPARED: Final = tuple(
    tables.job.c[name] for name in ("id", *_PLAIN, "outcome", "complete", "model_key")
)


def _candidate(row: dict[str, Any], device: str) -> _Candidate:
    """Return a candidate. Its devices are known by the key of its model, if that is equal."""
    parameters, sequence = row["parameters"], row["sequence"]
    model = None
    if parameters is not None or sequence is not None:
        model = ModelFacts(source="", parameters=parameters, sequence=sequence)
    job = Job(
        name="",
        image=Image(repository=row["repository"]),
        outcome=Outcome(row["outcome"]),
        roles=(RoleSize(role="", since_ms=0, replicas=0, gpu_model=device),),
        model=model,
        complete=bool(row["complete"]),
        **{name: row[name] for name in _PLAIN},
    )
    return _Candidate(row["id"], Run(job=job))


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
    job, model = tables.job, tables.model
    return (
        select(*_COMPARED, tables.image.c.repository, model.c.parameters, model.c.sequence)
        .select_from(candidates.join(job, job.c.id == candidates.c.id))
        .join(tables.image)
        .outerjoin(model)
    )


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
