"""Loads jobs, segments and pod runs; a bounded number of statements, whatever their number."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Result,
    Select,
    Table,
    bindparam,
    select,
    union_all,
)

from gangline.brain.facts.records import Image, Job, ModelFacts, PodRun, RoleSize, Run, Segment
from gangline.brain.store.sql import rows, tables

MAX_SEGMENTS: Final = 200
"""Of a run, the last ones: 16 hours of 5 minutes each."""
MAX_PODS: Final = 1_000
"""Of a run, in the order of role and rank."""

_SEGMENT: Final = tuple(str(column.name) for column in tables.segment.c)
_POD_RUN: Final = (*(str(column.name) for column in tables.pod_run.c), "node_name")
_MODEL: Final = tuple(str(column.name) for column in tables.model.c)


@dataclass(frozen=True)
class StoredJob:
    """A job with its numbers in the database."""

    id: int
    family_id: int
    job: Job


def job_query() -> Select[Any]:
    """Select jobs with their images and models."""
    image = tables.image.c
    return (
        select(
            tables.job,
            image.repository.label("image_repository"),
            image.tag.label("image_tag"),
            image.digest.label("image_digest"),
            *(column.label(f"model_{column.name}") for column in tables.model.c),
        )
        .join_from(tables.job, tables.image)
        .outerjoin(tables.model)
    )


def load_numbered_jobs(connection: Connection, ids: Sequence[int]) -> list[StoredJob]:
    """Load the jobs with these numbers; their number must be bounded."""
    return complete_jobs(connection, _NUMBERED_JOBS, _some(ids)) if ids else []


def load_jobs(connection: Connection, condition: ColumnElement[bool]) -> list[StoredJob]:
    """Load the jobs for which ``condition`` holds; it must bound their number."""
    return complete_jobs(connection, job_query().where(condition))


def complete_jobs(
    connection: Connection, query: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[StoredJob]:
    """Run a query made from ``job_query``, and add role sizes and models, in its order."""
    found = mappings(connection.execute(query, parameters))
    if not found:
        return []
    ids = [row["id"] for row in found]
    roles = _roles(connection, ids)
    images: dict[int, Image] = {}
    for row in found:
        if row["image_id"] not in images:
            images[row["image_id"]] = _image(row)
    return [
        StoredJob(
            row["id"],
            row["family_id"],
            rows.job_of(row, images[row["image_id"]], roles.get(row["id"], ()), _model(row)),
        )
        for row in found
    ]


def load_runs(connection: Connection, jobs: Sequence[StoredJob]) -> list[Run]:
    """Add the last segments and the pod runs of each job."""
    ids = [each.id for each in jobs]
    segments = _segments(connection, ids)
    pods = _pods(connection, ids)
    return [
        Run(job=each.job, segments=tuple(segments[each.id]), pods=tuple(pods[each.id]))
        for each in jobs
    ]


_SOME_IDS: Final[BindParameter[Any]] = bindparam("ids", expanding=True)
_NUMBERED_JOBS: Final = job_query().where(tables.job.c.id.in_(_SOME_IDS))
_ROLES: Final = select(tables.role_size).where(tables.role_size.c.job_id.in_(_SOME_IDS))


def pod_columns() -> list[Column[Any] | ColumnElement[Any]]:
    """Columns of a pod run with the name of its node."""
    return [*tables.pod_run.c, tables.node.c.name.label("node_name")]


def _image(row: Mapping[str, Any]) -> Image:
    return Image(
        repository=row["image_repository"], tag=row["image_tag"], digest=row["image_digest"]
    )


def _roles(connection: Connection, ids: Sequence[int]) -> dict[int, list[RoleSize]]:
    roles: dict[int, list[RoleSize]] = defaultdict(list)
    for row in mappings(connection.execute(_ROLES, _some(ids))):
        roles[row["job_id"]].append(rows.role_of(row))
    return {
        number: sorted(sizes, key=lambda size: (size.role, size.since_ms))
        for number, sizes in roles.items()
    }


def _model(row: Mapping[str, Any]) -> ModelFacts | None:
    if row["model_job_id"] is None:
        return None
    return rows.model_of({name: row[f"model_{name}"] for name in _MODEL})


def mappings(result: Result[Any]) -> list[dict[str, Any]]:
    """Return all rows by column; several times as fast as the mappings of SQLAlchemy."""
    names = [str(name) for name in result.keys()]  # noqa: SIM118 - not a mapping
    return [dict(zip(names, row, strict=True)) for row in result.all()]


def _segments(connection: Connection, ids: Sequence[int]) -> dict[int, list[Segment]]:
    loaded: dict[int, list[Segment]] = defaultdict(list)
    if not ids:
        return loaded
    selected = connection.execute(_last_segments(_ranges_for(ids)), _parameters(ids))
    for values in selected.all():
        row = dict(zip(_SEGMENT, values, strict=True))
        loaded[row["job_id"]].append(rows.segment_of(row))
    for segments in loaded.values():
        segments.sort(key=lambda each: (each.since_ms, each.round))
    return loaded


def _pods(connection: Connection, ids: Sequence[int]) -> dict[int, list[PodRun]]:
    loaded: dict[int, list[PodRun]] = defaultdict(list)
    if not ids:
        return loaded
    selected = connection.execute(_first_pods(_ranges_for(ids)), _parameters(ids))
    for values in selected.all():
        row = dict(zip(_POD_RUN, values, strict=True))
        loaded[row["job_id"]].append(rows.pod_of(row, row["node_name"] or ""))
    for pods in loaded.values():
        pods.sort(key=lambda pod: (pod.role, pod.rank, pod.number))
    return loaded


# To make a statement takes longer than to run it, and a server plans each text that it has not
# seen: so there is one for each power of two of jobs, with ranges that are empty or asked twice.


def _some(ids: Sequence[int]) -> dict[str, list[int]]:
    """Parameters of a statement about some rows."""
    return {"ids": [*ids, *(ids[-1] for _ in range(_ranges_for(ids) - len(ids)))]}


def _ranges_for(ids: Sequence[int]) -> int:
    return int(1 << (len(ids) - 1).bit_length())


@lru_cache(maxsize=64)
def _last_segments(jobs: int) -> CompoundSelect[Any]:
    segment = tables.segment
    return _ranges(segment, jobs, (segment.c.since_ms.desc(),), MAX_SEGMENTS)


@lru_cache(maxsize=64)
def _first_pods(jobs: int) -> Select[Any]:
    pod_run, node = tables.pod_run, tables.node
    order = (pod_run.c.role, pod_run.c.rank, pod_run.c.number)
    found = _ranges(pod_run, jobs, order, MAX_PODS).subquery()
    return select(found, node.c.name).outerjoin(node, node.c.id == found.c.node_id)


def _ranges(
    table: Table, jobs: int, order: Sequence[ColumnElement[Any]], limit: int
) -> CompoundSelect[Any]:
    ranges = [
        select(table)
        .where(table.c.job_id == bindparam(f"job_{number}"))
        .order_by(*order)
        .limit(limit)
        .subquery()
        for number in range(jobs)
    ]
    return union_all(*map(select, ranges))


def _parameters(ids: Sequence[int]) -> dict[str, int]:
    padded = [*ids, *(0 for _ in range(_ranges_for(ids) - len(ids)))]
    return {f"job_{number}": job for number, job in enumerate(padded)}
