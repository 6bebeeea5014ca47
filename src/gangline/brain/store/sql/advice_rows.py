"""Advice and actions as rows, with the identity of their job."""

from typing import Any

import msgspec
from sqlalchemy import Select, select

from gangline.brain.advisers.advice import Advice
from gangline.brain.advisers.decisions import ActionRecord, AdviceRecord, AdviceState
from gangline.brain.facts.records import Mode
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.rows import Columns


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
