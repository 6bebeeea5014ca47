"""Records as rows of tables, and back: JSON, and columns that repeat some fields of it.

Jobs, segments and pod runs are loaded with a bounded number of statements, whatever their number.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache, lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, select, true, union_all

from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.advisers.advice import GuardAction
from gangline.brain.facts.records import Job, PodRun, Run
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.bulk import given_rows

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def leaf(value: object) -> str:
    """Encode what a ``Leaf`` column holds."""
    return _encode(value).decode()


def row_of(record: msgspec.Struct, table: Table) -> dict[str, Any]:
    """Return the columns of a record, without keys that are no fields of it."""
    columns, defaults = _fields(type(record), table)
    row = {name: _plain(getattr(record, name)) for name in columns}
    if isinstance(record, SegmentFacts):  # it omits default values by itself
        return row | {"until_ms": record.until, "body": leaf(record)}
    given = {
        name: value
        for name, default in defaults.items()
        if (value := getattr(record, name)) != default
    }
    return row | {"body": leaf(given)}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


@cache
def _fields(kind: type[msgspec.Struct], table: Table) -> tuple[list[str], dict[str, Any]]:
    """Names of the fields that have a column; all fields with their defaults."""
    fields = msgspec.structs.fields(kind)
    columns = [field.name for field in fields if field.name in table.c]
    return columns, {field.name: field.default for field in fields}


def action_query() -> Select[Any]:
    """Select what ``load_actions`` reads, beside the jobs of the actions."""
    return select(tables.action.c.id, tables.action.c.body).join_from(tables.action, tables.job)


def load_actions(connection: Connection, query: Select[Any]) -> list[GuardAction]:
    """Return the actions of a query made from ``action_query``, in its order."""
    return [
        replace(msgspec.json.decode(body, type=GuardAction), id=number)
        for number, body in connection.execute(query)
    ]


S = TypeVar("S", bound=msgspec.Struct)

MAX_SEGMENTS: Final = 200
"""Of a run, the last ones: 16 hours of 5 minutes each."""
MAX_PODS: Final = 1_000
"""Of a run, in the order of role and rank."""


class StoredJob(NamedTuple):
    """A job with its number in the database."""

    id: int
    job: Job


def job_query() -> Select[Any]:
    """Select what ``load_jobs`` reads of jobs."""
    return select(tables.job.c.id, tables.job.c.body)


def load_jobs(
    connection: Connection, query: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[StoredJob]:
    """Return the jobs of a query made from ``job_query``, in its order; it must bound them."""
    return [
        StoredJob(number, msgspec.json.decode(body, type=Job))
        for number, body in connection.execute(query, parameters)
    ]


def load_runs(connection: Connection, jobs: Sequence[StoredJob]) -> list[Run]:
    """Add the last segments and the pod runs of each job."""
    ids = [number for number, _ in jobs]
    segments = _load(connection, _LAST_SEGMENTS, ids)
    pods = _load(connection, _FIRST_PODS, ids)
    return [
        Run(
            job=job,
            segments=tuple(
                sorted(segments[number], key=lambda segment: (segment.since, segment.round))
            ),
            pods=tuple(sorted(pods[number], key=lambda pod: (pod.role, pod.rank, pod.number))),
        )
        for number, job in jobs
    ]


class _RowsOfJobs(NamedTuple, Generic[S]):
    """Some rows of each job, in the order of an index."""

    kind: type[S]
    table: Table
    order: tuple[ColumnElement[Any], ...]
    most: int
    """Of each job."""


_LAST_SEGMENTS: Final = _RowsOfJobs(
    SegmentFacts, tables.segment, (tables.segment.c.since_ms.desc(),), MAX_SEGMENTS
)
_FIRST_PODS: Final = _RowsOfJobs(
    PodRun,
    tables.pod_run,
    (tables.pod_run.c.role, tables.pod_run.c.rank, tables.pod_run.c.number),
    MAX_PODS,
)


def _load(connection: Connection, asked: _RowsOfJobs[S], ids: Sequence[int]) -> dict[int, list[S]]:
    """Return records by the number of their job."""
    loaded: dict[int, list[S]] = defaultdict(list)
    if not ids:
        return loaded
    if connection.dialect.name == "postgresql":
        selected = connection.execute(_lateral(asked), {"id": list(ids)})
    else:
        # To make a statement takes longer than to run it, so there is one for each power of two of
        # jobs, with ranges that are empty.
        ranges = 1 << (len(ids) - 1).bit_length()
        padded = [*ids, *(0 for _ in range(ranges - len(ids)))]
        parameters = {f"job_{number}": job for number, job in enumerate(padded)}
        selected = connection.execute(_ranges(asked, ranges), parameters)
    for number, body in selected:
        loaded[number].append(msgspec.json.decode(body, type=asked.kind))
    return loaded


@cache
def _lateral(asked: _RowsOfJobs[Any]) -> Select[Any]:
    """For PostgreSQL: one statement for any number of jobs. SQLite and MariaDB have no LATERAL."""
    jobs = given_rows([tables.job.c.id])
    rows = _first_rows(asked, jobs.c.id).lateral()
    return select(rows).select_from(jobs.join(rows, true()))


@lru_cache(maxsize=64)
def _ranges(asked: _RowsOfJobs[Any], jobs: int) -> Select[Any]:
    ranges = [_first_rows(asked, bindparam(f"job_{number}")).subquery() for number in range(jobs)]
    return select(union_all(*map(select, ranges)).subquery())


def _first_rows(asked: _RowsOfJobs[Any], job: ColumnElement[Any]) -> Select[Any]:
    table = asked.table.c
    query = select(table.job_id, table.body).where(table.job_id == job)
    return query.order_by(*asked.order).limit(asked.most)
