"""Runs that are similar to a job: one range of an index for each level of similarity.

Levels: 0 the same specification by the same owner; 1 the same family; 2 the family without command
and owner; 3 the same image repository, kind and strategy in the namespace, with a model of similar
size where both are known; 4 the nearest models on the same devices, in any namespace. Level 5, the
prior of ``gangline.sizing``, needs no history.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Select, and_, false, or_, select

from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Job, Outcome, Run
from gangline.brain.store.keys import Keys, gpu_model
from gangline.brain.store.reading.load import StoredJob, complete_jobs, job_query, load_runs
from gangline.brain.store.sql import tables

LEVELS: Final = (0, 1, 2, 3, 4)
ENOUGH: Final = 3
"""Complete successful runs that a level needs; level 0 needs one."""
MAX_DISTANCE: Final = 0.7
"""Of level 4: Euclidean distance of logarithms of parameters, sequence and devices."""
_MODEL_RATIO: Final = 1.25
_CANDIDATES: Final = 60
"""Of level 3 and 4, the latest ones, before those with another model are left out."""
_DAY_MS: Final = 86_400_000

_BOUNDS: Final = (Outcome.RUNNING.value, Outcome.FAILED.value)


class SimilarLookup:
    """Looks for runs similar to ``job``, which must have its names as they are stored."""

    def __init__(
        self, connection: Connection, keys: Keys, job: Job, now_ms: int, days: int, limit: int
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._job = job
        self._since_ms = now_ms - days * _DAY_MS
        self._limit = limit

    def first(self) -> SimilarRuns | None:
        """Return the first level with enough runs; None if there is none."""
        for level in LEVELS:
            found = self.level(level, least=1 if level == 0 else ENOUGH)
            if found is not None:
                return found
        return None

    def level(self, level: int, *, least: int = 1) -> SimilarRuns | None:
        """Return the runs of one level; None if fewer than ``least`` succeeded."""
        runs = self._successful(level)
        if len(runs) < least:
            return None
        bounds = self._load(self._bounds(level)) if level < 4 else []
        namespaces = {run.job.namespace for run in (*runs, *bounds)}
        return SimilarRuns(
            level=level, runs=tuple(runs), bounds=tuple(bounds), namespaces=len(namespaces) or 1
        )

    def queries(self, level: int) -> list[Select[Any]]:
        """Return the statements of a level, for tests of their plans."""
        return [self._succeeded_query(each) for each in self._conditions(level)]

    def bounds_query(self, level: int) -> Select[Any]:
        """Return the statement for runs that count as lower bounds, for tests of its plan."""
        condition = or_(*self._conditions(level)) if self._conditions(level) else false()
        job = tables.job.c
        unsuccessful = or_(
            job.outcome.in_(_BOUNDS) & (job.submitted_ms >= self._since_ms),
            and_(
                job.outcome == Outcome.SUCCEEDED.value,
                job.finished_ms >= self._since_ms,
                job.complete.is_(False),
            ),
        )
        return (
            job_query()
            .where(condition, unsuccessful, self._not_itself())
            .order_by(job.submitted_ms.desc())
            .limit(self._limit)
        )

    def _successful(self, level: int) -> list[Run]:
        candidates: list[StoredJob] = []
        for condition in self._conditions(level):
            candidates += complete_jobs(self._connection, self._succeeded_query(condition))
        match level:
            case 3:
                return self._load([each for each in candidates if self._like_size(each.job)])
            case 4:
                return self._nearest(candidates)
            case _:
                return self._load(candidates)

    def _succeeded_query(self, condition: ColumnElement[bool]) -> Select[Any]:
        job = tables.job.c
        return (
            job_query()
            .where(
                condition,
                job.outcome == Outcome.SUCCEEDED.value,
                job.finished_ms >= self._since_ms,
                job.complete.is_(True),
                self._not_itself(),
            )
            .order_by(job.finished_ms.desc())
            .limit(max(self._limit, _CANDIDATES))
        )

    def _bounds(self, level: int) -> list[StoredJob]:
        return complete_jobs(self._connection, self.bounds_query(level))

    def _conditions(self, level: int) -> list[ColumnElement[bool]]:
        job, keys = tables.job.c, self._keys
        makers: dict[int, tuple[Column[Any], Callable[[Job], int | None]]] = {
            0: (job.spec_key, keys.specification),
            2: (job.base_key, keys.base),
            3: (job.image_key, keys.image),
        }
        if level == 1:
            family = tables.family.c
            query = select(family.id).where(family.digest == keys.family(self._job))
            return [job.family_id == query.scalar_subquery()]
        if level in makers:
            column, make = makers[level]
            value = make(self._job)
            return [] if value is None else [column == value]
        values = {keys.model(self._job, shift) for shift in (-1, 0, 1)}
        return [job.model_key == value for value in sorted(v for v in values if v is not None)]

    def _not_itself(self) -> ColumnElement[bool]:
        job = tables.job.c
        return or_(job.cluster != self._job.cluster, job.uid != self._job.uid)

    def _load(self, jobs: list[StoredJob]) -> list[Run]:
        return load_runs(self._connection, jobs[: self._limit])

    def _like_size(self, other: Job) -> bool:
        mine = self._job.model.parameters if self._job.model else None
        theirs = other.model.parameters if other.model else None
        if not mine or not theirs:
            return True
        return abs(math.log(mine / theirs)) <= math.log(_MODEL_RATIO)

    def _nearest(self, candidates: list[StoredJob]) -> list[Run]:
        distances = {each.id: model_distance(self._job, each.job) for each in candidates}
        near = [each for each in candidates if distances[each.id] <= MAX_DISTANCE]
        near.sort(key=lambda each: distances[each.id])
        return self._load(near)


def model_distance(one: Job, other: Job) -> float:
    """Distance of two jobs by what both know of parameters, sequence and world; else infinite."""
    if one.model is None or other.model is None or gpu_model(one) != gpu_model(other):
        return math.inf
    if not one.model.parameters or not other.model.parameters:
        return math.inf
    pairs = (
        (one.model.parameters, other.model.parameters),
        (one.model.sequence, other.model.sequence),
        (_devices(one), _devices(other)),
    )
    return math.hypot(*(math.log(a / b) for a, b in pairs if a and b))


def _devices(job: Job) -> int:
    """Devices at the start, the world of a job that computes on devices."""
    first: dict[str, int] = {}
    for size in job.roles:
        first.setdefault(size.role, size.replicas * size.gpus)
    return sum(first.values())
