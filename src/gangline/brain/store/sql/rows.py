"""Records as rows of tables: the record as JSON, and the columns that repeat fields of it."""

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import RowMapping, Select, Table, select

from gangline.brain.advisers.advice import ActionRecord, Advice, AdviceRecord, AdviceState
from gangline.brain.facts.records import Mode
from gangline.brain.store.sql import tables

Columns: TypeAlias = Mapping[str, Any] | RowMapping

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def leaf(value: object) -> str:
    """Encode what a ``Leaf`` column holds."""
    return _encode(value).decode()


def row_of(record: msgspec.Struct, table: Table) -> dict[str, Any]:
    """Return the columns of a record, without keys that are no fields of it."""
    columns, defaults = _fields(type(record), table)
    row = {}
    for name in columns:
        value = getattr(record, name)
        row[name] = value.value if isinstance(value, Enum) else value
    given = {
        name: value
        for name, default in defaults.items()
        if (value := getattr(record, name)) != default
    }
    return row | {"body": leaf(given)}


@cache
def _fields(kind: type[msgspec.Struct], table: Table) -> tuple[list[str], dict[str, Any]]:
    """Names of the fields that have a column; all fields with their defaults."""
    fields = msgspec.structs.fields(kind)
    columns = [field.name for field in fields if field.name in table.c]
    return columns, {field.name: field.default for field in fields}


def advice_query() -> Select[Any]:
    """Select advice with cluster and UID of its job."""
    job = tables.job.c
    return select(tables.advice, job.cluster, job.uid).join_from(tables.advice, tables.job)


def advice_of(row: Columns) -> AdviceRecord:
    return AdviceRecord(
        id=row["id"],
        cluster=row["cluster"],
        uid=row["uid"],
        advice=msgspec.json.decode(row["body"], type=Advice),
        at_ms=row["at_ms"],
        expires_ms=row["expires_ms"],
        mode=Mode(row["mode"]),
        state=AdviceState(row["state"]),
        held_because=row["held_because"] or "",
    )


def action_query() -> Select[Any]:
    """Select actions with cluster and UID of their job."""
    job = tables.job.c
    return select(tables.action, job.cluster, job.uid).join_from(tables.action, tables.job)


def action_of(row: Columns) -> ActionRecord:
    return ActionRecord(**{name: row[name] for name in ActionRecord.__struct_fields__})
