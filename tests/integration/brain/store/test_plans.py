"""Every statement of readers, writers and retention uses an index, on each database (Q17).

Takes 20 s: servers of three databases start.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.brain.history_rows import CLUSTER, DAYS, NOW_MS, SECRET, HistorySize, job, load
from sqlalchemy import Connection, event

from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.advisers.view import SimilarRuns
from gangline.brain.facts.records import Run
from gangline.brain.store.context import Fact, facts_of
from gangline.brain.store.deletion import RetentionSettings
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.reader import HistoryFilter

SIZE = HistorySize(jobs=3_000, pods_per_job=4, segments_per_job=6)
FEW_ROWS = 100
LARGE = {"job", "segment", "pod_run", "action", "node_speed"}
"""Tables that grow with the number of jobs."""


@pytest.fixture
def filled(address: str) -> Iterator[Store]:
    store = open_store(address, secret=SECRET, clock_ms=lambda: NOW_MS)
    load(store.engine, SIZE)
    yield store
    store.close()


class Plans:
    """Statements that were executed, with their parameters."""

    def __init__(self, store: Store) -> None:
        self._engine = store.engine
        self._statements: dict[str, Any] = {}

    def __enter__(self) -> "Plans":
        event.listen(self._engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._note)

    def _note(
        self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *rest: Any
    ) -> None:
        many = rest[-1]
        if statement.startswith(("SELECT", "DELETE", "UPDATE", "WITH")) and not many:
            self._statements.setdefault(statement, parameters)

    def searches(self, what: str) -> list[str]:
        """Lines of SQLite's plans with a text."""
        with self._engine.connect() as connection:
            return [
                row[-1]
                for statement, parameters in self._statements.items()
                for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                if what in row[-1]
            ]

    def scans(self) -> list[str]:
        """Statements that read all rows of a large table, with the table."""
        assert self._statements
        with self._engine.connect() as connection:
            return [
                f"{table}: {statement}"
                for statement, parameters in self._statements.items()
                for table in scanned(connection, statement, parameters)
                if table in LARGE
            ]


def scanned(connection: Connection, statement: str, parameters: Any) -> list[str]:
    match connection.dialect.name:
        case "sqlite":
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            details = [row[-1].split() for row in plan]
            return [words[1] for words in details if words[0] == "SCAN"]
        case "postgresql":
            # Tables of a few pages are read as they are, whatever indices they have.
            connection.exec_driver_sql("SET enable_seqscan = off")
            plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
            found = plan.scalar_one()
            nodes = found if isinstance(found, list) else json.loads(found)
            return list(sequential(nodes[0]["Plan"]))
        case _:
            plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
            # A table of a few rows is read as it is, if there is an index for when it has grown.
            read = [row for row in plan if row.table and row.type in ("ALL", "index")]
            return [row.table for row in read if int(row.rows) > FEW_ROWS or not row.possible_keys]


def sequential(node: dict[str, Any]) -> Iterator[str]:
    if node["Node Type"] == "Seq Scan":
        yield node["Relation Name"]
    for child in node.get("Plans", ()):
        yield from sequential(child)


def test_readers_use_an_index(filled: Store) -> None:
    asked = job(SIZE, SIZE.jobs - 5)
    filters = [
        {},
        {"namespace": asked.namespace, "owner": asked.owner},
        {"namespace": asked.namespace, "name": asked.name},
        {"since_ms": NOW_MS - 86_400_000, "until_ms": NOW_MS, "after_id": 5},
    ]
    with Plans(filled) as plans:
        filled.read.similar_runs(asked, now_ms=NOW_MS)
        filled.read.run(CLUSTER, asked.uid)
        filled.read.run(CLUSTER, namespace=asked.namespace, name=asked.name)
        for fields in filters:
            filled.read.history(HistoryFilter(cluster=CLUSTER, **fields))
        filled.read.running_jobs(CLUSTER)
        filled.read.open_actions(CLUSTER)
        filled.read.actions(CLUSTER, asked.uid)
        filled.read.recent_actions(CLUSTER, NOW_MS - 1)
        filled.read.node_speeds(CLUSTER, 20_000)
    assert plans.scans() == []


def test_ranges_of_similar_jobs_read_no_other_rows(tmp_path: Path) -> None:
    """The index decides all that a range is limited by: few rows are found among few, not many."""
    store = open_store(f"sqlite:///{tmp_path}/brain.db", secret=SECRET, clock_ms=lambda: NOW_MS)
    with Plans(store) as plans:
        asked = job(SIZE, next(n for n in range(1, 99) if job(SIZE, n).model))
        assert store.read.similar_runs(asked, now_ms=NOW_MS) == SimilarRuns()  # after all levels
    ranges = plans.searches("job USING INDEX ix_job_")
    assert len(ranges) == 5 * 5  # five ranges of each level
    assert all("outcome=? AND complete=?" in range_ for range_ in ranges)
    store.close()


def test_writers_use_an_index(filled: Store) -> None:
    runs = [filled.read.run(CLUSTER, job(SIZE, number).uid) for number in range(2_900, 2_930)]
    facts: list[Fact] = [fact for run in runs if isinstance(run, Run) for fact in facts_of(run)]
    uid = job(SIZE, 2_900).uid
    action = GuardAction(job=uid, family="f", what=What.WORKERS, at_ms=1)
    with Plans(filled) as plans:
        filled.write.facts(facts)
        fence = filled.write.lead(CLUSTER, "me")
        begun = filled.write.begin_action(CLUSTER, action, fence=fence)
        filled.write.update_action(CLUSTER, begun, fence=fence)
    assert plans.scans() == []


def test_retention_uses_an_index(filled: Store) -> None:
    days = DAYS * 99 // 100
    settings = RetentionSettings(segments_days=days, pods_days=days, jobs_days=days)
    with Plans(filled) as plans:
        deleted = asyncio.run(filled.prune(NOW_MS, settings, pause_s=0))
    assert deleted["job"] > 0
    assert plans.scans() == []
