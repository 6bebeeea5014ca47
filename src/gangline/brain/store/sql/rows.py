"""Records as rows of tables, and back; statements about many rows; the leader's fence.

A row has a record as JSON, and columns that repeat some fields of it. Jobs, segments and pod runs
are loaded with a bounded number of statements, whatever their number.

Many rows are written and found as each server does it fastest. PostgreSQL gets an array for each
column: one text whatever the number of rows, which is planned once for a connection. A list of
values in the text would be planned for each of its rows.

Fence: one writer at a time for each cluster, and one leader. A Brain that becomes leader takes the
next number. Transactions that act carry it, and are refused once another Brain has taken a higher
one. So a leader that was frozen and wakes up cannot act.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Connection,
    Insert,
    Select,
    String,
    Table,
    TableValuedAlias,
    Text,
    bindparam,
    func,
    select,
    tuple_,
)
from sqlalchemy import column as table_column
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeEngine

from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.advisers.advice import GuardAction
from gangline.brain.facts.records import PodRun, RecordedJob, Run
from gangline.brain.store.errors import Fenced
from gangline.brain.store.sql import tables

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def leaf(value: object) -> str:
    return _encode(value).decode()


def row_of(record: msgspec.Struct, table: Table) -> dict[str, Any]:
    """Return the columns of a record, without keys that are no fields of it."""
    values, defaults = msgspec.structs.asdict(record), _defaults(type(record))
    row = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in values.items()
        if name in table.c
    }
    if isinstance(record, SegmentFacts):  # it omits default values by itself
        return row | {"until_ms": record.until, "body": leaf(record)}
    given = {name: value for name, value in values.items() if value != defaults[name]}
    return row | {"body": leaf(given)}


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


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


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    *,
    replace: bool = True,
) -> None:
    """Insert ``rows``; ``replace`` the other columns of those that exist with the same ``keys``.

    All rows have the same columns. Of several rows with the same keys the last one counts.
    """
    if not rows:
        return
    by_key = {tuple(row[key] for key in keys): row for row in rows}
    # In one order everywhere, so that two writers do not wait for each other.
    ordered = [by_key[key] for key in sorted(by_key)]
    names, dialect = tuple(rows[0]), connection.dialect.name
    changed = tuple(name for name in names if replace and name not in keys)
    statement = _upsert(dialect, table, names, tuple(keys), changed)
    by_column = {name: [row[name] for row in ordered] for name in names}
    connection.execute(statement, by_column if dialect == "postgresql" else ordered)


@cache
def _upsert(
    dialect: str, table: Table, names: Sequence[str], keys: Sequence[str], changed: Sequence[str]
) -> Insert:
    if dialect not in ("postgresql", "sqlite"):
        into = mysql.insert(table)
        # MySQL has no "do nothing" beside IGNORE, which hides other errors as well.
        updated = changed or keys
        return into.on_duplicate_key_update({name: into.inserted[name] for name in updated})
    statement: postgresql.Insert | sqlite.Insert = sqlite.insert(table)
    if dialect == "postgresql":
        # One statement for all rows; a statement for each takes three times as long.
        rows = given_rows([table.c[name] for name in names])
        statement = postgresql.insert(table).from_select(names, select(rows))
    if not changed:
        return statement.on_conflict_do_nothing(index_elements=keys)
    values = {name: statement.excluded[name] for name in changed}
    return statement.on_conflict_do_update(index_elements=keys, set_=values)


def any_of(
    connection: Connection, columns: Sequence[Column[Any]], keys: Iterable[tuple[Any, ...]]
) -> ColumnElement[bool]:
    """Condition that ``columns`` equal one of ``keys``; it can use an index of these columns."""
    ordered = sorted(keys)
    if len(columns) == 1:
        return columns[0].in_([value for (value,) in ordered])
    match connection.dialect.name:
        case "sqlite":
            # SQLite scans the table for a list of rows, and searches the index for a subquery.
            values = func.json_each(msgspec.json.encode(ordered).decode()).table_valued("value")
            parts = [func.json_extract(values.c.value, f"$[{n}]") for n in range(len(columns))]
            return tuple_(*columns).in_(select(*parts).select_from(values))
        case "postgresql":
            # PostgreSQL plans a list of rows as a condition for each of them.
            by_column = zip(*ordered, strict=True) if ordered else [()] * len(columns)
            rows = given_rows(columns, [list(column) for column in by_column])
            return tuple_(*columns).in_(select(rows))
        case _:
            return tuple_(*columns).in_(ordered)


def given_rows(
    columns: Sequence[Column[Any]], values: Sequence[Sequence[Any]] | None = None
) -> TableValuedAlias:
    """A table from an array for each column: parameters of their names, or ``values``."""
    arrays = [
        bindparam(column.name, type_=ARRAY(_unbounded(column)))
        if values is None
        else bindparam(None, values[n], ARRAY(_unbounded(column)))
        for n, column in enumerate(columns)
    ]
    parts = [table_column(column.name, _unbounded(column)) for column in columns]
    return func.unnest(*arrays).table_valued(*parts, name="given").render_derived()


def _unbounded(column: Column[Any]) -> TypeEngine[Any]:
    """The type of a column; a cast to VARCHAR(n) would cut what is too long."""
    return Text() if isinstance(column.type, String) else column.type


def lock_cluster(connection: Connection, cluster: str) -> int:
    """Lock the cluster's row until the end of the transaction, and return its fencing number."""
    leader = tables.leader
    query = select(leader.c.fence).where(leader.c.cluster == cluster).with_for_update()
    fence = connection.execute(query).scalar()
    if fence is None:
        row = {"cluster": cluster, "fence": 0, "at_ms": 0}
        upsert(connection, leader, [row], ["cluster"], replace=False)
        fence = connection.execute(query).scalar_one()
    return int(fence)


def check_fence(connection: Connection, cluster: str, fence: int) -> None:
    """Lock the cluster's row.

    Raises:
        Fenced: another Brain has become leader since ``fence`` was taken.
    """
    current = lock_cluster(connection, cluster)
    if current != fence:
        raise Fenced(
            f"another Brain leads {cluster!r}: its fencing number is {current}, mine {fence}"
        )
