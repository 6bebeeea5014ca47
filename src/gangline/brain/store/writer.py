"""Writes facts and actions.

Facts: the rows that exist are read and merged, and those that changed are written, in one
transaction under the lock of the cluster's row in ``leader``: two Brains that report one job cannot
lose each other's records. Each transaction for actions carries the leader's fencing number, and
raises ``Fenced`` if another Brain leads.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Table, insert, select, update

from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.advisers.advice import GuardAction, Verdict
from gangline.brain.facts.records import NodeSpeed, PodRun, Record, RecordedJob, Run, merge
from gangline.brain.store.context import MAX_ROWS, Context, Fact, facts_of, jobs_first
from gangline.brain.store.errors import ActionNotBegun
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.rows import any_of, check_fence, lock_cluster, upsert

RowKey: TypeAlias = tuple[Any, ...]


@dataclass
class Written:
    rows: int = 0
    """Rows that were inserted or changed; facts that were known already are not among them."""
    refused: list[str] = field(default_factory=list)
    """Why facts were dropped, one text for each."""
    orphans: list[Fact] = field(default_factory=list)
    """Facts of jobs that are not known yet; write them again after their job."""


_KINDS: Final[dict[type[Record], tuple[Table, tuple[str, ...]]]] = {
    RecordedJob: (tables.job, ("cluster", "uid")),
    SegmentFacts: (tables.segment, ("job_id", "round", "since_ms")),
    PodRun: (tables.pod_run, ("job_id", "role", "rank", "number")),
    NodeSpeed: (tables.node_speed, ("cluster", "node", "day")),
}
"""Table of a kind of records, and the columns that identify a row."""


class Writer:
    """Writes to the database; each method is one transaction, or several of at most 500 rows."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def runs(self, runs: Iterable[Run]) -> Written:
        return self.facts(fact for run in runs for fact in facts_of(run))

    def facts(
        self, facts: Iterable[Fact], on_batch: Callable[[Sequence[Fact]], None] | None = None
    ) -> Written:
        """Write facts of any kind, in any order and as often as they are seen.

        ``on_batch`` receives the facts of each transaction after it was committed.
        """
        written = Written()
        ordered = jobs_first(facts)
        for first in range(0, len(ordered), MAX_ROWS):
            batch = ordered[first : first + MAX_ROWS]
            believed, refused = self._context.believe(batch)
            written.refused += refused
            if believed:
                done = self._context.write(partial(self._write_facts, believed))
                written.rows += done.rows
                written.refused += done.refused
                written.orphans += done.orphans
            if on_batch is not None:
                on_batch(batch)
        return written

    def lead(self, cluster: str, holder: str) -> int:
        """Take the next fencing number of the cluster, when ``holder`` has become its leader."""
        leader = {"holder": holder, "at_ms": self._context.clock_ms()}

        def transaction(connection: Connection) -> int:
            fence = lock_cluster(connection, cluster) + 1
            row = update(tables.leader).where(tables.leader.c.cluster == cluster)
            connection.execute(row.values(fence=fence, **leader))
            return fence

        return self._context.write(transaction)

    def begin_action(self, cluster: str, action: GuardAction, *, fence: int) -> GuardAction:
        """Store an action before it happens, and return it with its id.

        If the Brain ends before the plan of the action exists, the open action says what its
        successor must create; the name of the plan makes a second one impossible.

        Raises:
            ActionNotBegun: the job has an action without a verdict, or is not stored yet.
        """

        def transaction(connection: Connection) -> GuardAction:
            check_fence(connection, cluster, fence)
            job_id = rows.job_ids(connection, cluster, {action.job}).get(action.job)
            if job_id is None:
                raise ActionNotBegun(f"job {action.job} of cluster {cluster!r} is not stored")
            pending = rows.action_query().where(
                tables.action.c.job_id == job_id, tables.action.c.verdict == Verdict.PENDING
            )
            for other in rows.load_actions(connection, pending):
                raise ActionNotBegun(f"action {other.id} of job {action.job} has no verdict yet")
            values = {"job_id": job_id, "at_ms": action.at_ms, **_action_row(action)}
            key = connection.execute(insert(tables.action).values(values)).inserted_primary_key
            assert key is not None, "the table has an id"
            return replace(action, id=int(key[0]))

        return self._context.write(transaction)

    def update_action(self, cluster: str, action: GuardAction, *, fence: int) -> None:
        """Replace an action: its verdict is known, or what it has cost."""

        def transaction(connection: Connection) -> None:
            check_fence(connection, cluster, fence)
            changed = update(tables.action).where(tables.action.c.id == action.id)
            connection.execute(changed.values(_action_row(action)))

        self._context.write(transaction)

    def _write_facts(self, facts: Sequence[Fact], connection: Connection) -> Written:
        """Write facts of any cluster within one transaction."""
        written = Written()
        for cluster in sorted({fact.cluster for fact in facts}):
            lock_cluster(connection, cluster)
            of_cluster = [fact for fact in facts if fact.cluster == cluster]
            self._write_cluster(connection, cluster, of_cluster, written)
        return written

    def _write_cluster(
        self, connection: Connection, cluster: str, facts: Sequence[Fact], written: Written
    ) -> None:
        jobs = [((cluster, f.uid), f.record) for f in facts if isinstance(f.record, RecordedJob)]
        self._write_records(connection, RecordedJob, jobs, written)
        others = [fact for fact in facts if not isinstance(fact.record, RecordedJob)]
        owners: dict[str, int | str] = {"": cluster}  # of days of nodes
        owners |= rows.job_ids(connection, cluster, {fact.uid for fact in others if fact.uid})
        orphans = [fact for fact in others if fact.uid not in owners]
        forgotten = self._context.forgotten_uids(connection, cluster, {o.uid for o in orphans})
        written.orphans += [fact for fact in orphans if fact.uid not in forgotten]
        for kind in (SegmentFacts, PodRun, NodeSpeed):
            records = [
                ((owners[fact.uid], *fact.record.key), fact.record)
                for fact in others
                if fact.uid in owners and isinstance(fact.record, kind)
            ]
            self._write_records(connection, kind, records, written)

    def _write_records(
        self,
        connection: Connection,
        kind: type[Record],
        records: Iterable[tuple[RowKey, Record]],
        written: Written,
    ) -> None:
        """Merge records with the stored ones of their rows, and write what differs."""
        table, keys = _KINDS[kind]
        merged: dict[RowKey, Record] = {}
        for key, record in records:
            merged[key] = merge(merged.get(key, record), record)
        if not merged:
            return
        columns = [table.c[name] for name in keys]
        query = select(*columns, table.c.body).where(any_of(connection, columns, merged))
        stored = {
            tuple(key): msgspec.json.decode(body, type=kind)
            for *key, body in connection.execute(query)
        }
        changed = {
            key: after
            for key, record in merged.items()
            if (after := merge(stored[key], record) if key in stored else record) != stored.get(key)
        }
        jobs = [job for job in changed.values() if isinstance(job, RecordedJob)]
        new = [job for job in jobs if (job.cluster, job.uid) not in stored]
        forgotten = self._context.forgotten(connection, new)
        written.refused += [f"job {uid}: it was forgotten" for uid in sorted(forgotten)]
        values = [
            self._context.job_row(record)
            if isinstance(record, RecordedJob)
            else dict(zip(keys, key, strict=True)) | rows.row_of(record, table)
            for key, record in changed.items()
            if not (isinstance(record, RecordedJob) and record.uid in forgotten)
        ]
        upsert(connection, table, values, keys)
        written.rows += len(values)


def _action_row(action: GuardAction) -> dict[str, Any]:
    return {"verdict": action.verdict.value, "body": rows.leaf(action)}
