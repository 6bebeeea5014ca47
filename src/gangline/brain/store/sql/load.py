"""Loads jobs, segments and pod runs; a bounded number of statements, whatever their number."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Result,
    Select,
    Table,
    bindparam,
    select,
    true,
    union_all,
)

from gangline.brain.facts.records import Image, Job, ModelFacts, PodRun, RoleSize, Run, Segment
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.bulk import given_rows

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
    job_rows = mappings(connection.execute(query, parameters))
    if not job_rows:
        return []
    ids = [row["id"] for row in job_rows]
    roles = _roles(connection, ids)
    images: dict[int, Image] = {}
    for row in job_rows:
        if row["image_id"] not in images:
            images[row["image_id"]] = _image(row)
    return [
        StoredJob(
            row["id"],
            row["family_id"],
            rows.job_of(row, images[row["image_id"]], roles.get(row["id"], ()), _model(row)),
        )
        for row in job_rows
    ]


def load_runs(connection: Connection, jobs: Sequence[StoredJob]) -> list[Run]:
    """Add the last segments and the pod runs of each job."""
    ids = [job.id for job in jobs]
    segments = _segments(connection, ids)
    pods = _pods(connection, ids)
    return [
        Run(job=job.job, segments=tuple(segments[job.id]), pods=tuple(pods[job.id])) for job in jobs
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
    for row in _of_jobs(connection, _LAST_SEGMENTS, ids):
        loaded[row["job_id"]].append(rows.segment_of(row))
    for segments in loaded.values():
        segments.sort(key=lambda segment: (segment.since_ms, segment.round))
    return loaded


def _pods(connection: Connection, ids: Sequence[int]) -> dict[int, list[PodRun]]:
    loaded: dict[int, list[PodRun]] = defaultdict(list)
    for row in _of_jobs(connection, _FIRST_PODS, ids):
        loaded[row["job_id"]].append(rows.pod_of(row, row["node_name"] or ""))
    for pods in loaded.values():
        pods.sort(key=lambda pod: (pod.role, pod.rank, pod.number))
    return loaded


class _RowsOfJobs(NamedTuple):
    """Some rows of each job, in the order of an index."""

    table: Table
    order: tuple[ColumnElement[Any], ...]
    most: int
    """Of each job."""


_LAST_SEGMENTS: Final = _RowsOfJobs(
    tables.segment, (tables.segment.c.since_ms.desc(),), MAX_SEGMENTS
)
_FIRST_PODS: Final = _RowsOfJobs(
    tables.pod_run,
    (tables.pod_run.c.role, tables.pod_run.c.rank, tables.pod_run.c.number),
    MAX_PODS,
)


def _of_jobs(
    connection: Connection, asked: _RowsOfJobs, ids: Sequence[int]
) -> Iterator[dict[str, Any]]:
    if not ids:
        return
    if connection.dialect.name == "postgresql":
        selected = connection.execute(_lateral(asked), {"id": list(ids)})
    else:
        selected = connection.execute(_ranges(asked, _ranges_for(ids)), _parameters(ids))
    names = _POD_RUN if asked is _FIRST_PODS else _SEGMENT
    for values in selected.all():
        yield dict(zip(names, values, strict=True))


# To make a statement takes longer than to run it, and a server plans each text that it has not
# seen: so there is one for each power of two of jobs, with ranges that are empty or asked twice.


def _some(ids: Sequence[int]) -> dict[str, list[int]]:
    """Parameters of a statement about some rows."""
    return {"ids": [*ids, *(ids[-1] for _ in range(_ranges_for(ids) - len(ids)))]}


def _ranges_for(ids: Sequence[int]) -> int:
    return int(1 << (len(ids) - 1).bit_length())


@cache
def _lateral(asked: _RowsOfJobs) -> Select[Any]:
    """For PostgreSQL: one statement for any number of jobs. SQLite and MariaDB have no LATERAL."""
    jobs = given_rows([tables.job.c.id])
    rows = _first_rows(asked, jobs.c.id).lateral()
    return _with_nodes(asked, rows, jobs.join(rows, true()))


@lru_cache(maxsize=64)
def _ranges(asked: _RowsOfJobs, jobs: int) -> Select[Any]:
    ranges = [_first_rows(asked, bindparam(f"job_{number}")).subquery() for number in range(jobs)]
    rows = union_all(*map(select, ranges)).subquery()
    return _with_nodes(asked, rows, rows)


def _first_rows(asked: _RowsOfJobs, job: ColumnElement[Any]) -> Select[Any]:
    table = asked.table
    return select(table).where(table.c.job_id == job).order_by(*asked.order).limit(asked.most)


def _with_nodes(asked: _RowsOfJobs, rows: FromClause, source: FromClause) -> Select[Any]:
    if asked.table is not tables.pod_run:
        return select(rows).select_from(source)
    node = tables.node
    joined = source.outerjoin(node, node.c.id == rows.c.node_id)
    return select(rows, node.c.name).select_from(joined)


def _parameters(ids: Sequence[int]) -> dict[str, int]:
    padded = [*ids, *(0 for _ in range(_ranges_for(ids) - len(ids)))]
    return {f"job_{number}": job for number, job in enumerate(padded)}
