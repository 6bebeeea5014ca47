"""Records as rows of tables, and back: JSON, and columns that repeat some fields of it.

Jobs, segments and pod runs are loaded with a bounded number of statements, whatever their number.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, Table, func, select

from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.advisers.advice import GuardAction
from gangline.brain.facts.records import PodRun, RecordedJob, Run
from gangline.brain.store.sql import tables

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def leaf(value: object) -> str:
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


S = TypeVar("S", SegmentFacts, PodRun)

MAX_SEGMENTS: Final = 200
"""Of a run, the last ones: 16 hours of 5 minutes each."""
MAX_PODS: Final = 1_000
"""Of a run, in the order of role and rank."""


class StoredJob(NamedTuple):
    id: int
    job: RecordedJob


def job_query() -> Select[Any]:
    return select(tables.job.c.id, tables.job.c.body)


def run_query(cluster: str, uid: str = "", namespace: str = "", name: str = "") -> Select[Any]:
    """Select the run with a uid, or that of the job of this name that was submitted last."""
    job = tables.job.c
    if uid:
        return job_query().where(job.cluster == cluster, job.uid == uid)
    named = job_query().where(job.cluster == cluster, job.namespace == namespace, job.name == name)
    return named.order_by(job.submitted_ms.desc()).limit(1)


def job_ids(connection: Connection, cluster: str, uids: Iterable[str]) -> dict[str, int]:
    """Return the numbers of jobs by UID."""
    job = tables.job.c
    query = select(job.uid, job.id).where(job.cluster == cluster, job.uid.in_(sorted(set(uids))))
    return {uid: number for uid, number in connection.execute(query)}


def load_jobs(
    connection: Connection, query: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[StoredJob]:
    """Return the jobs of a query made from ``job_query``, in its order; it must bound them."""
    return [
        StoredJob(number, msgspec.json.decode(body, type=RecordedJob))
        for number, body in connection.execute(query, parameters)
    ]


def load_runs(connection: Connection, jobs: Sequence[StoredJob]) -> list[Run]:
    """Add the last segments and the pod runs of each job."""
    ids = [number for number, _ in jobs]
    segment, pod_run = tables.segment.c, tables.pod_run.c
    segments = _load(connection, SegmentFacts, ids, MAX_SEGMENTS, segment.since_ms.desc())
    pods = _load(connection, PodRun, ids, MAX_PODS, pod_run.role, pod_run.rank, pod_run.number)
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


def _load(
    connection: Connection, kind: type[S], ids: Sequence[int], most: int, *order: ColumnElement[Any]
) -> dict[int, list[S]]:
    """Return the first records of each job, by the number of the job, in the order of an index."""
    loaded: dict[int, list[S]] = defaultdict(list)
    if not ids:
        return loaded
    column = (tables.segment if kind is SegmentFacts else tables.pod_run).c
    number = func.row_number().over(partition_by=column.job_id, order_by=order)
    numbered = select(column.id, number.label("number")).where(column.job_id.in_(ids)).subquery()
    query = (
        select(column.job_id, column.body)
        .join(numbered, column.id == numbered.c.id)
        .where(numbered.c.number <= most)
    )
    for job_id, body in connection.execute(query):
        loaded[job_id].append(msgspec.json.decode(body, type=kind))
    return loaded
