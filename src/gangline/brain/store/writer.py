"""Writes advice and actions. Each transaction carries the leader's fencing number."""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection, bindparam, insert, select, update

from gangline.brain.advisers.advice import (
    CURRENT_STATES,
    PENDING,
    ActionRecord,
    Advice,
    AdviceRecord,
    AdviceState,
)
from gangline.brain.store.context import Context
from gangline.brain.store.errors import ActionOpen, UnknownJob
from gangline.brain.store.fact_writer import FactWriter
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.bulk import check_fence, take_fence
from gangline.brain.store.sql.load import mappings
from gangline.brain.store.sql.rows import action_of, action_query, advice_of, advice_query

_CURRENT = sorted(CURRENT_STATES)
AdviceKey: TypeAlias = tuple[str, str, int, str]
SAME_VALUE = 0.01
"""Relative difference below which a number is the same advice."""


class AdviceWriter:
    """Writes what the Brain advises and does.

    A method with a fencing number raises ``Fenced`` if another Brain leads.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def lead(self, cluster: str, holder: str) -> int:
        """Take the next fencing number of the cluster, when ``holder`` has become its leader."""
        now_ms = self._context.clock_ms()
        return self._context.write(
            lambda connection: take_fence(connection, cluster, holder, now_ms)
        )

    def advice_of_jobs(
        self, cluster: str, current: Mapping[str, Sequence[AdviceRecord]], *, fence: int
    ) -> dict[str, list[AdviceRecord]]:
        """Make ``current`` the open and held advice of jobs, by UID; return it with its ids.

        Advice about a subject that is not in ``current`` is superseded. Advice that repeats what is
        stored keeps its id, its time and its numbers; its state, expiry and reason to hold are
        updated. Jobs that are not stored yet are not in the answer.
        """

        def transaction(connection: Connection) -> dict[str, list[AdviceRecord]]:
            check_fence(connection, cluster, fence)
            ids = _job_ids(connection, cluster, current)
            stored = _current_advice(connection, ids.values())
            kept: dict[str, list[AdviceRecord]] = {}
            refreshed: list[tuple[AdviceRecord, AdviceRecord]] = []
            superseded: list[int] = []
            for uid, job_id in ids.items():
                before = stored.get(uid, {})
                kept[uid] = []
                for record in current[uid]:
                    stored_record = before.get(record.advice.key)
                    if stored_record is not None and repeats(stored_record.advice, record.advice):
                        del before[record.advice.key]
                        after = msgspec.structs.replace(
                            record, id=stored_record.id, at_ms=stored_record.at_ms
                        )
                        refreshed.append((stored_record, after))
                    else:
                        after = _insert(connection, job_id, record)
                    kept[uid].append(after)
                superseded += [record.id for record in before.values()]
            _refresh(connection, refreshed)
            _set_state(connection, superseded, AdviceState.SUPERSEDED)
            return kept

        return self._context.write(transaction)

    def advice_state(
        self,
        cluster: str,
        ids: Sequence[int],
        state: AdviceState,
        *,
        fence: int,
        held_because: str = "",
    ) -> None:
        """Set the state of pieces of advice."""

        def transaction(connection: Connection) -> None:
            check_fence(connection, cluster, fence)
            _set_state(connection, ids, state, held_because)

        self._context.write(transaction)

    def expire_advice(self, cluster: str, now_ms: int, *, fence: int, limit: int = 500) -> int:
        """Expire open advice whose time is over, at most ``limit`` pieces; return how many."""

        def transaction(connection: Connection) -> int:
            check_fence(connection, cluster, fence)
            advice = tables.advice.c
            query = (
                select(advice.id)
                .join_from(tables.advice, tables.job)
                .where(advice.state.in_(_CURRENT), advice.expires_ms <= now_ms)
                .where(tables.job.c.cluster == cluster)
                .order_by(advice.expires_ms)
                .limit(limit)
            )
            ids = list(connection.execute(query).scalars())
            _set_state(connection, ids, AdviceState.EXPIRED)
            return len(ids)

        return self._context.write(transaction)

    def begin_action(self, action: ActionRecord, *, fence: int) -> ActionRecord:
        """Store an action before it happens, and return it with its id and the name of its plan.

        Its advice becomes ``applied``. If the Brain ends before the plan exists, the open action
        says what its successor must create; the name of the plan makes a second one impossible.

        Raises:
            ActionOpen: the job has an action without a verdict; the error holds it.
            UnknownJob: the job is not stored yet.
        """

        def transaction(connection: Connection) -> ActionRecord:
            check_fence(connection, action.cluster, fence)
            job_id, name = _job(connection, action.cluster, action.uid)
            open_action = action_query().where(
                tables.action.c.job_id == job_id, tables.action.c.verdict == PENDING
            )
            if (row := connection.execute(open_action).mappings().first()) is not None:
                raise ActionOpen(action_of(row))
            values = {
                "advice_id": action.advice_id,
                "job_id": job_id,
                "what": action.what,
                "plan": action.plan,
                "at_ms": action.at_ms,
                "body": action.body,
                "verdict": action.verdict,
                "judged_ms": action.judged_ms,
                "cost_ms": action.cost_ms,
                "fence": fence,
            }
            number = _inserted(connection, tables.action, values)
            plan = action.plan or f"{name}-brain-{number}"
            connection.execute(
                update(tables.action).where(tables.action.c.id == number).values(plan=plan)
            )
            if action.advice_id is not None:
                _set_state(connection, [action.advice_id], AdviceState.APPLIED)
            return msgspec.structs.replace(action, id=number, plan=plan)

        return self._context.write(transaction)

    def update_action(self, action: ActionRecord, *, fence: int) -> None:
        """Replace verdict, cost and body of an action."""

        def transaction(connection: Connection) -> None:
            check_fence(connection, action.cluster, fence)
            connection.execute(
                update(tables.action)
                .where(tables.action.c.id == action.id)
                .values(
                    verdict=action.verdict,
                    judged_ms=action.judged_ms,
                    cost_ms=action.cost_ms,
                    body=action.body,
                )
            )

        self._context.write(transaction)


def _job(connection: Connection, cluster: str, uid: str) -> tuple[int, str]:
    job = tables.job.c
    query = select(job.id, job.name).where(job.cluster == cluster, job.uid == uid)
    row = connection.execute(query).first()
    if row is None:
        raise UnknownJob(cluster, uid)
    return row.id, row.name


def _job_ids(connection: Connection, cluster: str, uids: Iterable[str]) -> dict[str, int]:
    """Numbers of jobs by UID, in the order of ``uids``."""
    job = tables.job.c
    wanted = list(uids)
    rows = connection.execute(
        select(job.uid, job.id).where(job.cluster == cluster, job.uid.in_(wanted))
    )
    ids = {uid: number for uid, number in rows}
    return {uid: ids[uid] for uid in wanted if uid in ids}


def _current_advice(
    connection: Connection, job_ids: Iterable[int]
) -> dict[str, dict[AdviceKey, AdviceRecord]]:
    """Open and held advice by the UID of its job and its key."""
    advice = tables.advice.c
    query = advice_query().where(advice.job_id.in_(list(job_ids)), advice.state.in_(_CURRENT))
    by_uid: dict[str, dict[AdviceKey, AdviceRecord]] = {}
    for record in map(advice_of, mappings(connection.execute(query))):
        by_uid.setdefault(record.uid, {})[record.advice.key] = record
    return by_uid


def _refresh(connection: Connection, pairs: Iterable[tuple[AdviceRecord, AdviceRecord]]) -> None:
    """Update what repeated advice has new; its numbers stay."""
    values = [
        {
            "number": after.id,
            "state": after.state.value,
            "mode": after.mode.value,
            "expires_ms": after.expires_ms,
            "held_because": after.held_because or None,
        }
        for before, after in pairs
        if after != before
    ]
    if values:
        matches = tables.advice.c.id == bindparam("number")
        connection.execute(update(tables.advice).where(matches), values)


def _insert(connection: Connection, job_id: int, record: AdviceRecord) -> AdviceRecord:
    advice: Advice = record.advice
    values = {
        "job_id": job_id,
        "what": advice.what.value,
        "at_ms": record.at_ms,
        "expires_ms": record.expires_ms,
        "reason": advice.reason.code,
        "confidence": advice.confidence.value,
        "mode": record.mode.value,
        "state": record.state.value,
        "held_because": record.held_because or None,
        "body": rows.leaf(advice),
    }
    return msgspec.structs.replace(record, id=_inserted(connection, tables.advice, values))


def _inserted(connection: Connection, table: Any, values: dict[str, Any]) -> int:
    key = connection.execute(insert(table).values(values)).inserted_primary_key
    assert key is not None, "the table has an id"
    return int(key[0])


def _set_state(
    connection: Connection, ids: Sequence[int], state: AdviceState, held_because: str = ""
) -> None:
    if ids:
        connection.execute(
            update(tables.advice)
            .where(tables.advice.c.id.in_(sorted(ids)))
            .values(state=state.value, held_because=held_because or None)
        )


def repeats(before: Advice, now: Advice) -> bool:
    """Return whether two pieces of advice on one subject say the same.

    Predictions and prices move a little in each evaluation; a row for each would fill the history.
    """
    alike = ("reason.code", "was", "unit", "probe", "urgent", "extrapolated")
    if any(attrgetter(name)(before) != attrgetter(name)(now) for name in alike):
        return False
    if before.value is None or now.value is None:
        return before.value == now.value
    return math.isclose(before.value, now.value, rel_tol=SAME_VALUE)


class Writer(FactWriter, AdviceWriter):
    """Writes to the database; each method is one transaction, or several of at most 500 rows."""
