"""A history of any size, loaded in bulk: jobs by rows from here, the rest by the server itself.

A hundredth of the jobs belongs to ten large families, the others to families of fifty runs. The
jobs are spread evenly over 400 days, in the order of their ids.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

from sqlalchemy import Connection, Engine, Index, Table, text

from gangline.brain.facts.records import Image, Job, ModelFacts, Outcome, RoleSize
from gangline.brain.store.keys import Keys
from gangline.brain.store.sql import rows, tables

DAYS: Final = 400
DAY_MS: Final = 86_400_000
NOW_MS: Final = 1_790_000_000_000
CLUSTER: Final = "bench"
SECRET: Final = b"benchmark" * 3
_LARGE_FAMILIES: Final = 10
_RUNS_OF_FAMILY: Final = 50
_NODES: Final = 1_000
_BATCH: Final = 2_000


@dataclasses.dataclass(frozen=True)
class HistorySize:
    """How many rows."""

    jobs: int
    pods_per_job: int
    segments_per_job: int

    @property
    def families(self) -> int:
        """Families with few runs, beside the large ones."""
        return max(1, self.jobs // _RUNS_OF_FAMILY)


def family_number(size: HistorySize, number: int) -> int:
    """The family of a job; ids of both begin with 1."""
    if number % 100 == 0:
        return 1 + number // 100 % _LARGE_FAMILIES
    return 1 + _LARGE_FAMILIES + number * 2_654_435_761 % size.families


def job(size: HistorySize, number: int) -> Job:
    """One job of the history, by its id."""
    family = family_number(size, number)
    finished_ms = NOW_MS - DAYS * DAY_MS + number * DAYS * DAY_MS // size.jobs
    outcome = (Outcome.FAILED, Outcome.SUCCEEDED)[number % 10 != 0]
    return Job(
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
        model=ModelFacts(source="reported", parameters=10**9 * (1 + family % 70), sequence=4096)
        if family % 3 == 0
        else None,
        observed_ms=finished_ms,
    )


def load(engine: Engine, size: HistorySize) -> None:
    """Fill an empty schema."""
    indices = [] if engine.dialect.name in ("mysql", "mariadb") else _drop_indices(engine)
    keys = Keys(SECRET)
    with _unlimited(engine) as connection:
        _load_families(connection, keys, size)
        _load_jobs(connection, keys, size)
    for statement in _derived(engine.dialect.name, size):
        with _unlimited(engine) as connection:
            connection.execute(text(statement))
    for index in indices:
        with _unlimited(engine) as connection:
            index.create(connection)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET statement_timeout = 0"))
        for statement in _statistics(engine.dialect.name):
            connection.execute(text(statement))


@contextlib.contextmanager
def _unlimited(engine: Engine) -> Iterator[Connection]:
    """A transaction without limits of time, and without checks of each foreign key."""
    with engine.connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        yield connection


def _drop_indices(engine: Engine) -> list[Index]:
    indices = [
        index
        for table in (tables.job, tables.segment, tables.pod_run)
        for index in sorted(table.indexes, key=lambda index: str(index.name))
    ]
    with engine.connect() as connection, connection.begin():
        for index in indices:
            index.drop(connection)
    return indices


def _load_families(connection: Connection, keys: Keys, size: HistorySize) -> None:
    families: dict[int, Job] = {}
    for number in range(1, size.jobs + 1):
        families.setdefault(family_number(size, number), job(size, number))
    images: dict[Image, int] = {}
    for each in families.values():
        images.setdefault(each.image, len(images) + 1)
    _insert(
        connection,
        tables.image,
        (
            rows.image_row(image) | {"id": number, "identity": keys.number(image.repository)}
            for image, number in images.items()
        ),
    )
    _insert(
        connection,
        tables.family,
        (
            {
                "id": number,
                "cluster": each.cluster,
                "namespace": each.namespace,
                "stem": each.stem,
                "kind": each.kind,
                "owner": each.owner,
                "image_repository": each.image.repository,
                "digest": keys.family(each),
                "jobs": _RUNS_OF_FAMILY,
                "last_ms": NOW_MS,
            }
            for number, each in families.items()
        ),
    )
    nodes = ({"id": n + 1, "cluster": CLUSTER, "name": f"node-{n}"} for n in range(_NODES))
    _insert(connection, tables.node, nodes)
    leader = {"cluster": CLUSTER, "fence": 1, "holder": "bench", "at_ms": NOW_MS}
    _insert(connection, tables.leader, [leader])


def _load_jobs(connection: Connection, keys: Keys, size: HistorySize) -> None:
    learned: dict[int, tuple[int, int | None, int | None]] = {}
    images: dict[str, int] = {
        repository: number
        for repository, number in connection.execute(text("SELECT repository, id FROM image"))
    }

    def job_rows() -> Iterator[dict[str, Any]]:
        for number in range(1, size.jobs + 1):
            each = job(size, number)
            family = family_number(size, number)
            if family not in learned:
                learned[family] = (keys.base(each), keys.image(each), keys.model(each))
            base, image, model = learned[family]
            yield rows.job_row(each) | {
                "id": number,
                "family_id": family,
                "image_id": images[each.image.repository],
                "spec_key": keys.specification(each),
                "base_key": base,
                "image_key": image,
                "model_key": model,
            }

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


def _derived(dialect: str, size: HistorySize) -> Iterator[str]:
    """Statements that make the rows of each job on the server."""

    def numbers(count: int) -> tuple[str, str]:
        if dialect == "postgresql":
            return "", f"(SELECT generate_series(0, {count - 1}) AS n) AS numbers"
        if dialect == "sqlite":
            series = f"SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count - 1}"
            return f"WITH RECURSIVE numbers(n) AS ({series}) ", "numbers"
        return "", f"(SELECT seq AS n FROM seq_0_to_{count - 1}) AS numbers"

    no = "FALSE" if dialect == "postgresql" else "0"
    yield (
        "INSERT INTO role_size (job_id, role, since_ms, replicas, memory_bytes, gpus, gpu_model,"
        " source) SELECT id, 'worker', submitted_ms, 4, 34359738368, 8, 'A100', 'user' FROM job"
    )
    yield (
        "INSERT INTO model (job_id, parameters, sequence, source) SELECT id,"
        " 1000000000 * (1 + family_id % 70), 4096, 'reported' FROM job WHERE family_id % 3 = 0"
    )
    prefix, series = numbers(size.pods_per_job)
    yield (
        f"INSERT INTO pod_run (job_id, role, rank, number, node_id, started_ms, ended_ms, oom,"
        f" limit_memory_bytes, peak_memory_bytes, cpu_p95_millis, samples) {prefix}"
        f" SELECT job.id, 'worker', n, 0, 1 + (job.id + n) % {_NODES}, started_ms, finished_ms,"
        f" {no}, 34359738368, 9000000000 + (job.id + n) % 1000000000, 3000, 100"
        f" FROM job CROSS JOIN {series} ORDER BY job.id, n"
    ).replace(", rank,", ', "rank",' if dialect in ("postgresql", "sqlite") else ", `rank`,")
    prefix, series = numbers(size.segments_per_job)
    yield (
        f"INSERT INTO segment (job_id, round, since_ms, until_ms, nodes, procs, gpu_model,"
        f" micro_batch, global_batch, steps, step_mean_us, step_m2, compute_us, sync_us, quality)"
        f" {prefix} SELECT job.id, 1, started_ms + n * 100000, started_ms + n * 100000 + 100000,"
        f" 4, 32, 'A100', 8, 256, 300, 100000 + (job.id + n) % 1000, 1000, 90000, 9000, 'good'"
        f" FROM job CROSS JOIN {series} ORDER BY job.id, n"
    )
    if dialect == "postgresql":
        for name in ("job", "family", "image", "node", "pod_run", "segment"):
            yield f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), max(id)) FROM {name}"


def _statistics(dialect: str) -> Iterator[str]:
    match dialect:
        case "postgresql":
            yield "VACUUM ANALYZE"
        case "sqlite":
            yield "PRAGMA analysis_limit=1000"
            yield "ANALYZE"
        case _:
            names = ("job", "family", "image", "role_size", "model", "pod_run", "segment")
            yield f"ANALYZE TABLE {', '.join(names)}"
