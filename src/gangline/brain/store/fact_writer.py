"""Writes facts: reads the rows that exist, merges, and writes those that changed.

All of it happens in one transaction under the lock of the cluster's row in ``leader``: two Brains
that report one job cannot lose each other's records.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Table, select, update

from gangline.brain.facts.merge import (
    merge_jobs,
    merge_node_speeds,
    merge_pod_runs,
    merge_segments,
)
from gangline.brain.facts.records import Image, Job, NodeSpeed, PodRun, Run, Segment
from gangline.brain.store.batch import Fact, PodFact, SegmentFact, SpeedFact, batches, facts_of
from gangline.brain.store.context import Context
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.bulk import any_of, lock_cluster, upsert
from gangline.brain.store.sql.load import load_jobs, mappings, pod_columns

T = TypeVar("T")
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
        writable = [fact for fact in of_jobs if fact.uid in ids]
        self._write_segments(ids, [fact for fact in writable if isinstance(fact, SegmentFact)])
        self._write_pods(cluster, ids, [fact for fact in writable if isinstance(fact, PodFact)])
        self._write_speeds(cluster, [fact for fact in facts if isinstance(fact, SpeedFact)])

    # Jobs

    def _write_jobs(self, cluster: str, jobs: Sequence[Job]) -> None:
        merged: dict[str, Job] = {}
        for job in jobs:
            merged[job.uid] = merge_jobs(merged[job.uid], job) if job.uid in merged else job
        if not merged:
            return
        stored = load_jobs(
            self._connection,
            (tables.job.c.cluster == cluster) & tables.job.c.uid.in_(sorted(merged)),
        )
        before = {stored_job.job.uid: stored_job for stored_job in stored}
        changed = []
        for uid, job in merged.items():
            former = before.get(uid)
            after = merge_jobs(former.job, job) if former else merge_jobs(job, job)
            if former is None or after != former.job:
                changed.append(after)
        new = [job for job in changed if job.uid not in before]
        forgotten = self._context.forgotten(self._connection, new)
        self._written.refused += [f"job {uid}: it was forgotten" for uid in sorted(forgotten)]
        changed = [job for job in changed if job.uid not in forgotten]
        if not changed:
            return
        images = self._image_ids({job.image for job in changed})
        families = self._family_ids(changed)
        job_rows = [
            self._context.job_row(job)
            | {
                "family_id": families[self._context.keys.family(job)],
                "image_id": images[job.image],
            }
            for job in changed
        ]
        upsert(self._connection, tables.job, job_rows, ("cluster", "uid"))
        self._written.rows += len(job_rows)
        self._count_families(
            {job.uid: families[self._context.keys.family(job)] for job in changed},
            {uid: stored_job.family_id for uid, stored_job in before.items()},
            {job.uid: _last_ms(job) for job in changed},
            {uid: _last_ms(stored_job.job) for uid, stored_job in before.items()},
        )
        ids = self._job_ids(cluster, {job.uid for job in changed})
        roles = [
            {"job_id": ids[job.uid]} | rows.role_row(size) for job in changed for size in job.roles
        ]
        upsert(self._connection, tables.role_size, roles, ("job_id", "role", "since_ms"))
        models = [
            {"job_id": ids[job.uid]} | rows.model_row(job.model)
            for job in changed
            if job.model is not None
        ]
        upsert(self._connection, tables.model, models, ("job_id",))

    def _job_ids(self, cluster: str, uids: set[str]) -> dict[str, int]:
        if not uids:
            return {}
        job = tables.job.c
        query = select(job.uid, job.id).where(job.cluster == cluster, job.uid.in_(sorted(uids)))
        return {uid: number for uid, number in self._connection.execute(query)}

    def _image_ids(self, images: set[Image]) -> dict[Image, int]:
        identities = {
            self._context.keys.number("image", *_parts(image_)): image_ for image_ in images
        }
        image = tables.image.c
        query = select(image.identity, image.id).where(image.identity.in_(sorted(identities)))
        ids = dict(self._connection.execute(query).all())
        new = [
            rows.image_row(image_) | {"identity": identity}
            for identity, image_ in identities.items()
            if identity not in ids
        ]
        if new:
            upsert(self._connection, tables.image, new, ("identity",))
            ids = dict(self._connection.execute(query).all())
        return {image_: ids[identity] for identity, image_ in identities.items()}

    def _family_ids(self, jobs: Sequence[Job]) -> dict[str, int]:
        by_digest = {self._context.keys.family(job): job for job in jobs}
        family = tables.family.c
        query = select(family.digest, family.id).where(family.digest.in_(sorted(by_digest)))
        ids = dict(self._connection.execute(query).all())
        new = [
            self._context.family_row(job, digest)
            for digest, job in by_digest.items()
            if digest not in ids
        ]
        if new:
            upsert(self._connection, tables.family, new, ("digest",))
            ids = dict(self._connection.execute(query).all())
        return ids

    def _count_families(
        self,
        after: Mapping[str, int],
        before: Mapping[str, int],
        times: Mapping[str, int],
        former_times: Mapping[str, int],
    ) -> None:
        change: dict[int, int] = defaultdict(int)
        last: dict[int, int] = defaultdict(int)
        for uid, family_id in after.items():
            if before.get(uid) == family_id:
                if times[uid] > former_times[uid]:
                    last[family_id] = max(last[family_id], times[uid])
                continue
            last[family_id] = max(last[family_id], times[uid])
            change[family_id] += 1
            if uid in before:
                change[before[uid]] -= 1
        family = tables.family
        for family_id in sorted(last.keys() | change.keys()):
            if change[family_id]:
                self._connection.execute(
                    update(family)
                    .where(family.c.id == family_id)
                    .values(jobs=family.c.jobs + change[family_id])
                )
            self._connection.execute(
                update(family)
                .where(family.c.id == family_id, family.c.last_ms < last[family_id])
                .values(last_ms=last[family_id])
            )

    # Segments, pod runs, speeds of nodes

    def _write_segments(self, ids: Mapping[str, int], facts: Sequence[SegmentFact]) -> None:
        merged: dict[RowKey, Segment] = {}
        for fact in facts:
            segment = fact.segment
            key = (ids[fact.uid], segment.round, segment.since_ms)
            merged[key] = merge_segments(merged.get(key, segment), segment)
        stored = {
            key: rows.segment_of(row)
            for key, row in self._existing(
                tables.segment, ("job_id", "round", "since_ms"), merged
            ).items()
        }
        changed = [
            {"job_id": key[0]} | rows.segment_row(after)
            for key, after in _changed(merged, stored, merge_segments)
        ]
        upsert(self._connection, tables.segment, changed, ("job_id", "round", "since_ms"))
        self._written.rows += len(changed)

    def _write_pods(self, cluster: str, ids: Mapping[str, int], facts: Sequence[PodFact]) -> None:
        merged: dict[RowKey, PodRun] = {}
        for fact in facts:
            pod = fact.pod
            key = (ids[fact.uid], pod.role, pod.rank, pod.number)
            merged[key] = merge_pod_runs(merged.get(key, pod), pod)
        if not merged:
            return
        keys = ("job_id", "role", "rank", "number")
        pod_run = tables.pod_run
        query = (
            select(*pod_columns())
            .select_from(pod_run.outerjoin(tables.node))
            .where(any_of(self._connection, [pod_run.c[name] for name in keys], merged))
        )
        stored = {
            tuple(row[name] for name in keys): rows.pod_of(row, row["node_name"] or "")
            for row in mappings(self._connection.execute(query))
        }
        changed = dict(_changed(merged, stored, merge_pod_runs))
        nodes = self._node_ids(cluster, {pod.node: "" for pod in changed.values() if pod.node})
        pod_rows = [
            {"job_id": key[0], "node_id": nodes.get(pod.node)} | rows.pod_row(pod)
            for key, pod in changed.items()
        ]
        upsert(self._connection, pod_run, pod_rows, keys)
        self._written.rows += len(pod_rows)

    def _write_speeds(self, cluster: str, facts: Sequence[SpeedFact]) -> None:
        if not facts:
            return
        latest = sorted((fact.speed for fact in facts), key=lambda speed: speed.observed_ms)
        ids = self._node_ids(cluster, {speed.node: speed.gpu_model for speed in latest})
        merged: dict[RowKey, NodeSpeed] = {}
        for speed in latest:
            key = (ids[speed.node], speed.day)
            merged[key] = merge_node_speeds(merged.get(key, speed), speed)
        existing = self._existing(tables.node_speed, ("node_id", "day"), merged)
        stored = {
            key: rows.speed_of(row, merged[key].node, merged[key].gpu_model)
            for key, row in existing.items()
        }
        changed = [
            {"node_id": key[0]} | rows.speed_row(after)
            for key, after in _changed(merged, stored, merge_node_speeds)
        ]
        upsert(self._connection, tables.node_speed, changed, ("node_id", "day"))
        self._written.rows += len(changed)

    def _node_ids(self, cluster: str, models: Mapping[str, str]) -> dict[str, int]:
        if not models:
            return {}
        node = tables.node.c
        query = select(node.name, node.id, node.device_model).where(
            node.cluster == cluster, node.name.in_(sorted(models))
        )
        nodes = {row.name: row for row in self._connection.execute(query)}
        new = [
            {"cluster": cluster, "name": name, "device_model": device_model}
            for name, device_model in models.items()
            if name not in nodes or (device_model and nodes[name].device_model != device_model)
        ]
        if new:
            upsert(self._connection, tables.node, new, ("cluster", "name"))
            nodes = {row.name: row for row in self._connection.execute(query)}
        return {name: row.id for name, row in nodes.items()}

    def _existing(
        self, table: Table, keys: Sequence[str], expected: Iterable[RowKey]
    ) -> dict[RowKey, Mapping[str, Any]]:
        values = list(expected)
        if not values:
            return {}
        columns = [table.c[name] for name in keys]
        query = select(table).where(any_of(self._connection, columns, values))
        return {
            tuple(row[name] for name in keys): row
            for row in mappings(self._connection.execute(query))
        }


def _changed(
    merged: Mapping[RowKey, T], stored: Mapping[RowKey, T], merge: Callable[[T, T], T]
) -> Iterator[tuple[RowKey, T]]:
    """Yield the merged records that differ from the stored ones, by the key of their rows."""
    for key, record in merged.items():
        former = stored.get(key)
        after = record if former is None else merge(former, record)
        if after != former:
            yield key, after


def _parts(image: Image) -> tuple[str, str, str]:
    return (image.repository, image.tag, image.digest)


def _last_ms(job: Job) -> int:
    return job.finished_ms or job.submitted_ms
