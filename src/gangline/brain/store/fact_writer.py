"""Writes facts: reads the rows that exist, merges, and writes those that changed.

All of it happens in one transaction under the lock of the cluster's row in ``leader``: two Brains
that report one job cannot lose each other's records.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from sqlalchemy import Connection, Table, select

from gangline.brain.facts.merge import (
    merge_jobs,
    merge_node_speeds,
    merge_pod_runs,
    merge_segments,
)
from gangline.brain.facts.records import Job, NodeSpeed, PodRun, Run, Segment
from gangline.brain.store.batch import Fact, PodFact, SegmentFact, SpeedFact, batches, facts_of
from gangline.brain.store.context import Context
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.bulk import any_of, lock_cluster, upsert

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
