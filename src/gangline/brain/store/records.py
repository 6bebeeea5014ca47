"""Writes and reads the records of job runs, and sums up what jobs used.

A row belongs to a job of the history. A record of a job that is not stored, or was forgotten, is
not written. A repeated write replaces the row; the recorder merges with what is stored before its
first write (``records.read``), so that a successor continues the record of its predecessor.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, case, delete, func, select

from gangline.brain.facts.job_record import Curves, JobRecord, LogTail
from gangline.brain.facts.records import RecordedJob
from gangline.brain.store.context import MAX_ROWS, Context
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.rows import job_ids, load_jobs, lock_cluster, run_query, upsert
from gangline.brain.store.sql.tables import job_log, job_record

MAX_LOGS: Final = 64
"""Tails of one job, the last ones."""


_SUMS: Final = ("gpu_seconds", "cpu_seconds", "productive_seconds")


class _RunAccount(msgspec.Struct, frozen=True, kw_only=True):
    spec: Mapping[str, Any] | None = None
    """The specification: ``written``, and ``effective`` if it differs."""
    logs: tuple[LogTail, ...] = ()
    gpu_seconds: int = 0
    cpu_seconds: int = 0
    productive_seconds: int | None = None


class RecordRow(_RunAccount, frozen=True, kw_only=True):
    """What is written of one run; ``logs`` are tails that are new."""

    uid: str
    at_ms: int
    record: JobRecord


class StoredRecord(_RunAccount, frozen=True, kw_only=True):
    """A job with its record; None if it has none, or the retention has deleted it."""

    job: RecordedJob
    record: JobRecord | None = None


class UsageRow(msgspec.Struct, frozen=True):
    """What the jobs of one group used."""

    key: str
    jobs: int
    gpu_seconds: int
    cpu_seconds: int
    accounted_seconds: int
    """GPU seconds of those jobs that account for their time."""
    productive_seconds: int


class RecordStore:
    def __init__(self, context: Context) -> None:
        self._context = context

    def write(self, cluster: str, records: Sequence[RecordRow]) -> list[str]:
        """Write records, and return the UIDs of jobs that the history does not have."""

        def transaction(connection: Connection) -> list[str]:
            lock_cluster(connection, cluster)
            ids = job_ids(connection, cluster, [row.uid for row in records])
            stored = [(ids[row.uid], row) for row in records if row.uid in ids]
            upsert(connection, job_record, [_row(*pair) for pair in stored], ("job_id",))
            logs = [_log_row(number, tail) for number, row in stored for tail in row.logs]
            upsert(connection, job_log, logs, ("job_id", "pod", "attempt", "container"))
            for number in {row["job_id"] for row in logs}:
                _drop_old_logs(connection, number)
            return [row.uid for row in records if row.uid not in ids]

        return self._context.write(transaction) if records else []

    def read(
        self, cluster: str, uid: str = "", *, namespace: str = "", name: str = ""
    ) -> StoredRecord | None:
        """Return the record of a job: by its uid, or of those of a name the one submitted last."""
        query = run_query(cluster, uid, namespace, self._context.private_name(name))

        def transaction(connection: Connection) -> StoredRecord | None:
            jobs = load_jobs(connection, query)
            if not jobs:
                return None
            number, job = jobs[0]
            of_job = select(job_record).where(job_record.c.job_id == number)
            row = connection.execute(of_job).first()
            return _stored(job, row, _logs(connection, number)) if row else StoredRecord(job=job)

        return self._context.read(transaction)

    def usage(
        self, cluster: str, by: str, since_ms: int, until_ms: int, namespaces: Iterable[str] = ()
    ) -> list[UsageRow]:
        """Return the use by jobs whose end, or last observation, is in a time; most used first.

        Args:
            cluster: the cluster.
            by: ``queue``, ``owner``, ``kind`` or ``namespace``.
            since_ms: first time.
            until_ms: first time after it.
            namespaces: only jobs of these; none: of all.
        """
        job, record = tables.job.c, job_record.c
        accounted = case((record.productive_seconds.is_not(None), record.gpu_seconds), else_=0)
        sums = (record.gpu_seconds, record.cpu_seconds, accounted, record.productive_seconds)
        query = (
            select(job[by], func.count(), *(func.coalesce(func.sum(one), 0) for one in sums))
            .join_from(job_record, tables.job)
            .where(job.cluster == cluster, record.at_ms >= since_ms, record.at_ms < until_ms)
            .group_by(job[by])
        )
        if chosen := sorted(namespaces):
            query = query.where(job.namespace.in_(chosen))
        rows = self._context.read(lambda connection: list(connection.execute(query)))
        used = [UsageRow(key, *map(int, numbers)) for key, *numbers in rows]
        return sorted(used, key=lambda row: (-row.gpu_seconds, -row.cpu_seconds, row.key))


def _drop_old_logs(connection: Connection, job_id: int) -> None:
    log = job_log.c
    newest = select(log.id).where(log.job_id == job_id).order_by(log.at_ms.desc(), log.id.desc())
    if ids := list(connection.execute(newest.offset(MAX_LOGS).limit(MAX_ROWS)).scalars()):
        connection.execute(delete(job_log).where(log.id.in_(ids)))


def _row(job_id: int, row: RecordRow) -> dict[str, Any]:
    body = msgspec.json.encode(replace(row.record, curves={})).decode()
    spec, curves = _pack(row.spec) if row.spec else None, _pack(row.record.curves)
    size = len(body) + len(spec or b"") + len(curves)
    columns = {name: getattr(row, name) for name in ("at_ms", *_SUMS)}
    packed = {"size_bytes": size, "body": body, "spec": spec, "curves": curves}
    return {"job_id": job_id, **columns, **packed}


def _log_row(job_id: int, tail: LogTail) -> dict[str, Any]:
    lines = _pack(tail.lines)
    row = msgspec.structs.asdict(tail)
    return row | {"job_id": job_id, "size_bytes": len(lines), "lines": lines}


def _stored(job: RecordedJob, row: Any, logs: tuple[LogTail, ...]) -> StoredRecord:
    record = msgspec.json.decode(row.body, type=JobRecord)
    curves = msgspec.convert(_unpack(row.curves), dict[str, Curves]) if row.curves else {}
    return StoredRecord(
        job=job,
        record=replace(record, curves=curves),
        spec=_unpack(row.spec) if row.spec else None,
        logs=logs,
        **{name: getattr(row, name) for name in _SUMS},
    )


def _logs(connection: Connection, job_id: int) -> tuple[LogTail, ...]:
    log = job_log.c
    query = select(job_log).where(log.job_id == job_id).order_by(log.at_ms, log.id).limit(MAX_LOGS)
    names = [name for name in LogTail.__struct_fields__ if name != "lines"]
    return tuple(
        LogTail(lines=tuple(_unpack(row.lines)), **{name: getattr(row, name) for name in names})
        for row in connection.execute(query)
    )


def _pack(value: Any) -> bytes:
    return zlib.compress(msgspec.json.encode(value), 1)


def _unpack(packed: bytes) -> Any:
    return msgspec.json.decode(zlib.decompress(packed))
