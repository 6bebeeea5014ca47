"""Writes facts, advice and actions.

Facts: the rows that exist are read and merged, and those that changed are written, in one
transaction under the lock of the cluster's row in ``leader``: two Brains that report one job cannot
lose each other's records. Each transaction for advice and actions carries the leader's fencing
number.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Connection, Table, bindparam, insert, select, update

from gangline.brain.advisers.advice import (
    CURRENT_STATES,
    PENDING,
    ActionRecord,
    Advice,
    AdviceRecord,
    AdviceState,
)
from gangline.brain.facts.merge import (
    merge_jobs,
    merge_node_speeds,
    merge_pod_runs,
    merge_segments,
)
from gangline.brain.facts.records import Job, NodeSpeed, PodRun, Run, Segment
from gangline.brain.store.batch import Fact, PodFact, SegmentFact, SpeedFact, batches, facts_of
from gangline.brain.store.context import Context
from gangline.brain.store.errors import ActionOpen, UnknownJob
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.bulk import any_of, check_fence, lock_cluster, take_fence, upsert
from gangline.brain.store.sql.rows import action_of, action_query, advice_of, advice_query, mappings

S = TypeVar("S", bound=msgspec.Struct)
RowKey: TypeAlias = tuple[Any, ...]


@dataclass
class Written:
    """What became of facts."""

    rows: int = 0
    """Rows that were inserted or changed; facts that were known already are not among them."""
    refused: list[str] = field(default_factory=list)
    """Why facts were dropped, one text for each."""
    orphans: list[Fact] = field(default_factory=list)
    """Facts of jobs that are not known yet; write them again after their job."""

    def add(self, other: "Written") -> None:
        """Count ``other`` as well."""
        self.rows += other.rows
        self.refused += other.refused
        self.orphans += other.orphans


class FactWriter:
    """Writes facts, in any order and as often as they are seen."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def runs(self, runs: Iterable[Run]) -> Written:
        """Write jobs with their segments and pod runs."""
        return self.facts(fact for run in runs for fact in facts_of(run))

    def facts(
        self, facts: Iterable[Fact], on_batch: Callable[[Sequence[Fact]], None] | None = None
    ) -> Written:
        """Write facts of any kind, in transactions of at most 500 rows.

        ``on_batch`` receives the facts of each transaction after it was committed.
        """
        written = Written()
        for batch in batches(facts):
            written.add(self._batch(batch))
            if on_batch is not None:
                on_batch(batch)
        return written

    def _batch(self, batch: Sequence[Fact]) -> Written:
        believed, refused = self._context.believe(batch)
        if not believed:
            return Written(refused=refused)

        def transaction(connection: Connection) -> Written:
            written = _BatchWriter(connection, self._context, believed).write()
            written.refused[:0] = refused
            return written

        return self._context.write(transaction)


class _BatchWriter:
    def __init__(self, connection: Connection, context: Context, facts: Sequence[Fact]) -> None:
        self._connection = connection
        self._context = context
        self._facts = facts
        self._written = Written()

    def write(self) -> Written:
        by_cluster: dict[str, list[Fact]] = defaultdict(list)
        for fact in self._facts:
            by_cluster[fact.cluster].append(fact)
        for cluster in sorted(by_cluster):
            lock_cluster(self._connection, cluster)
            self._write_cluster(cluster, by_cluster[cluster])
        return self._written

    def _write_cluster(self, cluster: str, facts: Sequence[Fact]) -> None:
        self._write_jobs(cluster, [fact for fact in facts if isinstance(fact, Job)])
        of_jobs = [fact for fact in facts if isinstance(fact, SegmentFact | PodFact)]
        ids = self._job_ids(cluster, {fact.uid for fact in of_jobs})
        orphans = [fact for fact in of_jobs if fact.uid not in ids]
        gone = self._context.forgotten_uids(
            self._connection, cluster, {fact.uid for fact in orphans}
        )
        self._written.orphans += [fact for fact in orphans if fact.uid not in gone]
        segments: list[tuple[RowKey, Segment]] = []
        pods: list[tuple[RowKey, PodRun]] = []
        speeds: list[tuple[RowKey, NodeSpeed]] = []
        for fact in facts:
            match fact:
                case SegmentFact(_, uid, segment) if uid in ids:
                    segments.append(((ids[uid], segment.round, segment.since_ms), segment))
                case PodFact(_, uid, pod) if uid in ids:
                    pods.append(((ids[uid], pod.role, pod.rank, pod.number), pod))
                case SpeedFact(_, speed):
                    speeds.append(((cluster, speed.node, speed.day), speed))
        self._write_records(_SEGMENTS, segments)
        self._write_records(_PODS, pods)
        self._write_records(_SPEEDS, speeds)

    def _write_jobs(self, cluster: str, jobs: Sequence[Job]) -> None:
        stored, changed = self._changes(_JOBS, [((cluster, job.uid), job) for job in jobs])
        new = [job for key, job in changed.items() if key not in stored]
        forgotten = self._context.forgotten(self._connection, new)
        self._written.refused += [f"job {uid}: it was forgotten" for uid in sorted(forgotten)]
        self._upsert(
            _JOBS,
            [self._context.job_row(job) for job in changed.values() if job.uid not in forgotten],
        )

    def _job_ids(self, cluster: str, uids: set[str]) -> dict[str, int]:
        if not uids:
            return {}
        job = tables.job.c
        query = select(job.uid, job.id).where(job.cluster == cluster, job.uid.in_(sorted(uids)))
        return {uid: number for uid, number in self._connection.execute(query)}

    def _write_records(self, records: "_Records[S]", facts: Iterable[tuple[RowKey, S]]) -> None:
        _, changed = self._changes(records, facts)
        self._upsert(
            records,
            [
                dict(zip(records.keys, key, strict=True)) | rows.row_of(record, records.table)
                for key, record in changed.items()
            ],
        )

    def _upsert(self, records: "_Records[Any]", changed: Sequence[Mapping[str, Any]]) -> None:
        upsert(self._connection, records.table, changed, records.keys)
        self._written.rows += len(changed)

    def _changes(
        self, records: "_Records[S]", facts: Iterable[tuple[RowKey, S]]
    ) -> tuple[dict[RowKey, S], dict[RowKey, S]]:
        """Return the stored records of the rows that facts are about, and what differs of them."""
        merged: dict[RowKey, S] = {}
        for key, record in facts:
            merged[key] = records.merge(merged.get(key, record), record)
        if not merged:
            return {}, {}
        columns = [records.table.c[name] for name in records.keys]
        query = select(*columns, records.table.c.body).where(
            any_of(self._connection, columns, merged)
        )
        stored = {
            tuple(key): msgspec.json.decode(body, type=records.kind)
            for *key, body in self._connection.execute(query)
        }
        after = {
            key: records.merge(stored[key], record) if key in stored else record
            for key, record in merged.items()
        }
        return stored, {key: now for key, now in after.items() if now != stored.get(key)}


@dataclass(frozen=True)
class _Records(Generic[S]):
    """Records of one kind: their table, the columns that identify a row, how two become one."""

    kind: type[S]
    table: Table
    keys: tuple[str, ...]
    merge: Callable[[S, S], S]


_JOBS = _Records(Job, tables.job, ("cluster", "uid"), merge_jobs)
_SEGMENTS = _Records(Segment, tables.segment, ("job_id", "round", "since_ms"), merge_segments)
_PODS = _Records(PodRun, tables.pod_run, ("job_id", "role", "rank", "number"), merge_pod_runs)
_SPEEDS = _Records(NodeSpeed, tables.node_speed, ("cluster", "node", "day"), merge_node_speeds)


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
    numbered = connection.execute(
        select(job.uid, job.id).where(job.cluster == cluster, job.uid.in_(wanted))
    )
    ids = {uid: number for uid, number in numbered}
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
