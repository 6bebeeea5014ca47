"""Statements about many rows at a time, as each server runs them fastest; and the leader's fence.

PostgreSQL gets an array for each column: one text whatever the number of rows, which is planned
once for a connection. A list of values in the text would be planned for each of its rows.

Fence: one writer at a time for each cluster, and one leader. A Brain that becomes leader takes the
next number. Transactions that act carry it, and are refused once another Brain has taken a higher
one. So a leader that was frozen and wakes up cannot act.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Connection,
    Insert,
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

from gangline.brain.store.errors import Fenced
from gangline.brain.store.sql import tables


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
