"""A history of any size, loaded in bulk: jobs by rows from here, the rest by the server itself.

A hundredth of the jobs belongs to ten large families, the others to families of fifty runs. The
jobs are spread evenly over 400 days, in the order of their ids.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, UniqueConstraint, text
from sqlalchemy.schema import (
    AddConstraint,
    CreateIndex,
    DropConstraint,
    DropIndex,
    ExecutableDDLElement,
)

from gangline.api.jobs.training_facts import ModelShapeFacts, SegmentFacts, StepSeconds
from gangline.brain.facts.records import Image, Outcome, PodRun, RecordedJob, RoleSize
from gangline.brain.store.context import Keys
from gangline.brain.store.deletion import RetentionSettings
from gangline.brain.store.sql import rows, tables

DAYS: Final = 400
DAY_MS: Final = 86_400_000
NOW_MS: Final = 1_790_000_000_000
CLUSTER: Final = "bench"
SECRET: Final = b"benchmark" * 3
_LARGE_FAMILIES: Final = 10
_RUNS_OF_FAMILY: Final = 50
_SEGMENT_MS: Final = 100_000
_POD: Final = PodRun(
    role="worker",
    rank=0,
    number=0,
    node="node-1",
    started_ms=NOW_MS - DAY_MS,
    ended_ms=NOW_MS,
    limit_memory_bytes=32 << 30,
    peak_memory_bytes=9_000_000_000,
    cpu_p95_millis=3000,
    samples=100,
)
"""The record of every pod run: no look-up selects by what is in it. Likewise of segments."""
_SEGMENT: Final = SegmentFacts(
    round=1,
    since=NOW_MS - DAY_MS,
    until=NOW_MS - DAY_MS + _SEGMENT_MS,
    nodes=4,
    procs=32,
    device_model="A100",
    micro_batch=8,
    global_batch=256,
    steps=300,
    step_seconds=StepSeconds(1, 0.1, 1e-09),
    compute_seconds=0.09,
    sync_seconds=0.009,
)
_BATCH: Final = 2_000


@dataclasses.dataclass(frozen=True)
class HistorySize:
    """How many rows."""

    jobs: int
    pods_per_job: int
    segments_per_job: int
    retained: bool = False
    """Segments and pod runs of those jobs only whose rows retention does not delete."""

    @property
    def pod_days(self) -> int:
        """Pod runs are of jobs that ended within so many days; segments likewise."""
        return RetentionSettings().pods_days if self.retained else DAYS

    @property
    def segment_days(self) -> int:
        return RetentionSettings().segments_days if self.retained else DAYS

    @property
    def pods(self) -> int:
        return self.jobs * self.pod_days // DAYS * self.pods_per_job

    @property
    def segments(self) -> int:
        return self.jobs * self.segment_days // DAYS * self.segments_per_job

    @property
    def families(self) -> int:
        """Families with few runs, beside the large ones."""
        return max(1, self.jobs // _RUNS_OF_FAMILY)


def family_number(size: HistorySize, number: int) -> int:
    """The family of a job; ids of both begin with 1."""
    if number % 100 == 0:
        return 1 + number // 100 % _LARGE_FAMILIES
    return 1 + _LARGE_FAMILIES + number * 2_654_435_761 % size.families


def job(size: HistorySize, number: int) -> RecordedJob:
    """One job of the history, by its id."""
    family = family_number(size, number)
    finished_ms = NOW_MS - DAYS * DAY_MS + number * DAYS * DAY_MS // size.jobs
    outcome = (Outcome.FAILED, Outcome.SUCCEEDED)[number % 10 != 0]
    return RecordedJob(
        cluster=CLUSTER,
        uid=f"00000000-0000-0000-0000-{number:012d}",
        namespace=f"team-{family % 200}",
        name=f"train-{family}-{number}",
        stem=f"train-{family}",
        kind="ElasticJob",
        owner=f"user-{family % 1000}",
        queue="default",
        image=Image(repository=f"registry/train-{family % 5000}", tag="1"),
        command_digest=f"{family:032x}",
        spec_digest=f"{family * 8 + number % 7:032x}",
        submitted_ms=finished_ms - 7_200_000,
        started_ms=finished_ms - 7_000_000,
        finished_ms=finished_ms,
        outcome=outcome,
        complete=True,
        roles=(
            RoleSize(
                role="worker",
                since_ms=finished_ms - 7_200_000,
                replicas=4,
                gpus=8,
                gpu_model="A100",
                memory_bytes=32 << 30,
            ),
        ),
        model=ModelShapeFacts(params=10**9 * (1 + family % 70), sequence=4096)
        if family % 3 == 0
        else None,
        observed_ms=finished_ms,
    )


def load(engine: Engine, size: HistorySize) -> None:
    """Fill an empty schema. PostgreSQL fills two tables at a time, and makes their indices last."""
    parts = _dropped_parts(engine)
    keys = Keys(SECRET)
    with _unlimited(engine) as connection:
        leader = {"cluster": CLUSTER, "fence": 1, "holder": "bench", "at_ms": NOW_MS}
        _insert(connection, tables.leader, [leader])
        _load_jobs(connection, keys, size)
    made = _derived(engine.dialect.name, size)

    def fill(table: Table) -> None:
        with _unlimited(engine) as connection:
            if statement := made.get(table.name):
                if engine.dialect.name == "postgresql":
                    # A table that is emptied in the same transaction needs no log (wal_level).
                    connection.execute(text(f"TRUNCATE {table.name}"))
                connection.exec_driver_sql(statement)
            for part in parts.get(table.name, ()):
                connection.execute(part)

    names = (tables.segment, tables.pod_run, tables.job)
    with ThreadPoolExecutor(2 if engine.dialect.name == "postgresql" else 1) as pool:
        list(pool.map(fill, names))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET statement_timeout = 0"))
        for statement in _finishing(engine.dialect.name):
            connection.execute(text(statement))


@contextlib.contextmanager
def _unlimited(engine: Engine) -> Iterator[Connection]:
    """A transaction without limits of time, and without checks of each foreign key."""
    with engine.connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield connection


def _dropped_parts(engine: Engine) -> dict[str, list[ExecutableDDLElement]]:
    """Drop what makes inserts slow, and return what makes it again, by table."""
    again: dict[str, list[ExecutableDDLElement]] = {}
    if engine.dialect.name in ("mysql", "mariadb"):
        return again
    with engine.connect() as connection, connection.begin():
        for table in (tables.job, tables.segment, tables.pod_run):
            made = again.setdefault(table.name, [])
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                connection.execute(DropIndex(index))
                made.append(CreateIndex(index))
            if engine.dialect.name == "sqlite" or table is tables.job:
                continue
            unique = [each for each in table.constraints if isinstance(each, UniqueConstraint)]
            for constraint in (*unique, table.primary_key):
                connection.execute(DropConstraint(constraint))
                made.append(AddConstraint(constraint, isolate_from_table=False))
    return again


def _load_jobs(connection: Connection, keys: Keys, size: HistorySize) -> None:
    def job_rows() -> Iterator[dict[str, Any]]:
        for number in range(1, size.jobs + 1):
            each = job(size, number)
            levels = zip(tables.LEVEL_COLUMNS, keys.levels(each), strict=True)
            yield rows.row_of(each, tables.job) | {"id": number} | dict(levels)

    _insert(connection, tables.job, job_rows())


def _insert(connection: Connection, table: Table, made: Iterable[dict[str, Any]]) -> None:
    iterator = iter(made)
    first = next(iterator)
    names = list(first)
    if connection.dialect.name == "postgresql":
        raw: Any = connection.connection.driver_connection
        copy = f'COPY "{table.name}" ({", ".join(names)}) FROM STDIN'
        with raw.cursor() as cursor, cursor.copy(copy) as target:
            target.write_row(tuple(first.values()))
            for row in iterator:
                target.write_row(tuple(row.values()))
        return
    batch = [first]
    for row in iterator:
        batch.append(row)
        if len(batch) >= _BATCH:
            connection.execute(table.insert(), batch)
            batch = []
    if batch:
        connection.execute(table.insert(), batch)


def _derived(dialect: str, size: HistorySize) -> dict[str, str]:
    """Statements that make the rows of each job on the server, by table."""

    def each(count: int, days: int) -> tuple[str, str]:
        """What precedes a statement, and jobs with numbers from 0 to below ``count``."""
        kept = f" WHERE finished_ms >= {NOW_MS - days * DAY_MS}" if size.retained else ""
        if dialect == "postgresql":
            series = f"LATERAL (SELECT generate_series(0, {count - 1}) AS n) AS numbers"
            return "", f"job CROSS JOIN {series}{kept}"
        if dialect == "sqlite":
            series = f"SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count - 1}"
            ordered = f"job CROSS JOIN numbers{kept} ORDER BY job.id, n"
            return f"WITH RECURSIVE numbers(n) AS ({series}) ", ordered
        series = f"(SELECT seq AS n FROM seq_0_to_{count - 1}) AS numbers"
        return "", f"job CROSS JOIN {series}{kept} ORDER BY job.id, n"

    rank = '"rank"' if dialect in ("postgresql", "sqlite") else "`rank`"
    pod, segment = rows.row_of(_POD, tables.pod_run), rows.row_of(_SEGMENT, tables.segment)
    prefix, pods = each(size.pods_per_job, size.pod_days)
    of_pods = (
        f"INSERT INTO pod_run (job_id, role, {rank}, number, ended_ms, body) {prefix}"
        f" SELECT job.id, 'worker', n, 0, finished_ms, '{pod['body']}' FROM {pods}"
    )
    prefix, segments = each(size.segments_per_job, size.segment_days)
    started = f"finished_ms - 7000000 + n * {_SEGMENT_MS}"
    of_segments = (
        f"INSERT INTO segment (job_id, round, since_ms, until_ms, body) {prefix} SELECT job.id, 1,"
        f" {started}, {started} + {_SEGMENT_MS}, '{segment['body']}' FROM {segments}"
    )
    return {"pod_run": of_pods, "segment": of_segments}


def _finishing(dialect: str) -> Iterator[str]:
    """Numbers of the next rows, and statistics for the planner."""
    if dialect == "postgresql":
        for name in ("job", "pod_run", "segment"):
            yield f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), max(id)) FROM {name}"
    yield from _statistics(dialect)


def _statistics(dialect: str) -> Iterator[str]:
    match dialect:
        case "postgresql":
            yield "VACUUM ANALYZE"
        case "sqlite":
            yield "PRAGMA analysis_limit=1000"
            yield "ANALYZE"
        case _:
            names = ("job", "pod_run", "segment")
            yield f"ANALYZE TABLE {', '.join(names)}"
