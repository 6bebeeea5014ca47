"""Records as rows of tables and back. Fields that have no column go into the column ``extra``."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from sqlalchemy import RowMapping, Select, Table, select

from gangline.brain.advisers.advice import ActionRecord, Advice, AdviceRecord, AdviceState
from gangline.brain.facts.records import (
    Image,
    Job,
    Mode,
    ModelFacts,
    NodeSpeed,
    PodRun,
    RoleSize,
    Segment,
    Wishes,
)
from gangline.brain.store.sql import tables

S = TypeVar("S", bound=msgspec.Struct)
Columns: TypeAlias = Mapping[str, Any] | RowMapping

_ELSEWHERE: Final[Mapping[type[msgspec.Struct], frozenset[str]]] = {
    Job: frozenset({"image", "wishes", "roles", "model"}),
    PodRun: frozenset({"node"}),
    NodeSpeed: frozenset({"node", "gpu_model", "day"}),
}
"""Fields that other tables hold, or that have their own conversion."""

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def leaf(value: object) -> str:
    """Encode what a ``Leaf`` column holds."""
    return _encode(value).decode()


def read_leaf(text: str | None, kind: type[S]) -> S:
    """Decode a record from a ``Leaf`` column; an empty one has the defaults."""
    return msgspec.json.decode(text or "{}", type=kind)


@cache
def _split(kind: type[msgspec.Struct], table: Table) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the fields with a column, and the others with their defaults."""
    elsewhere = _ELSEWHERE.get(kind, frozenset())
    direct, extra = [], {}
    for field in msgspec.structs.fields(kind):
        if field.name in elsewhere:
            continue
        if field.name in table.c:
            direct.append(field.name)
        else:
            extra[field.name] = (
                field.default_factory()
                if field.default_factory is not msgspec.NODEFAULT
                else field.default
            )
    return tuple(direct), extra


def _to_row(record: msgspec.Struct, table: Table) -> dict[str, Any]:
    direct, extra = _split(type(record), table)
    row = {name: getattr(record, name) for name in direct}
    others = {
        name: value
        for name, default in extra.items()
        if (value := getattr(record, name)) != default
    }
    row["extra"] = leaf(others) if others else None
    return row


def _from_row(kind: type[S], row: Columns, others: dict[str, Any] | None = None) -> S:
    # Columns that are no fields are ignored, which is faster than to leave them out.
    values = row if isinstance(row, dict) else {str(name): row[name] for name in row}
    values = values | (others or {})
    if extra := values.pop("extra"):
        values |= msgspec.json.decode(extra)
    # Not strict: SQLite and MySQL return booleans as numbers.
    return msgspec.convert(values, kind, strict=False)


def job_row(job: Job) -> dict[str, Any]:
    """Columns of a job, without ids and keys."""
    row = _to_row(job, tables.job)
    row["outcome"] = job.outcome.value
    row["wishes"] = None if job.wishes == Wishes() else leaf(job.wishes)
    return row


def job_of(
    row: Columns,
    image: Image,
    roles: Iterable[RoleSize] = (),
    model: ModelFacts | None = None,
) -> Job:
    """Put a job together."""
    others = {
        "image": image,
        "wishes": read_leaf(row["wishes"], Wishes),
        "roles": tuple(roles),
        "model": model,
    }
    return _from_row(Job, row, others)


def image_row(image: Image) -> dict[str, Any]:
    return {"repository": image.repository, "tag": image.tag, "digest": image.digest}


def role_row(size: RoleSize) -> dict[str, Any]:
    return _to_row(size, tables.role_size)


def role_of(row: Columns) -> RoleSize:
    return _from_row(RoleSize, row)


def model_row(model: ModelFacts) -> dict[str, Any]:
    return _to_row(model, tables.model)


def model_of(row: Columns) -> ModelFacts:
    return _from_row(ModelFacts, row)


def segment_row(segment: Segment) -> dict[str, Any]:
    return _to_row(segment, tables.segment) | {"quality": segment.quality.value}


def segment_of(row: Columns) -> Segment:
    return _from_row(Segment, row)


def pod_row(pod: PodRun) -> dict[str, Any]:
    return _to_row(pod, tables.pod_run)


def pod_of(row: Columns, node: str) -> PodRun:
    return _from_row(PodRun, row, {"node": node})


def speed_row(speed: NodeSpeed) -> dict[str, Any]:
    return _to_row(speed, tables.node_speed) | {"day": speed.day}


def speed_of(row: Columns, node: str, gpu_model: str) -> NodeSpeed:
    others = {"node": node, "gpu_model": gpu_model, "day": row["day"]}
    return _from_row(NodeSpeed, row, others)


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
    return ActionRecord(
        id=row["id"],
        cluster=row["cluster"],
        uid=row["uid"],
        advice_id=row["advice_id"],
        what=row["what"],
        plan=row["plan"],
        at_ms=row["at_ms"],
        verdict=row["verdict"],
        judged_ms=row["judged_ms"],
        cost_ms=row["cost_ms"],
        body=row["body"],
    )
