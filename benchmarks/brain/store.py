"""The Brain's history: look-up of similar runs, history, inserts, and pruning, on each database.

``python -m benchmarks.brain.store [--jobs N] [--databases postgresql,mariadb,sqlite]``; a million
jobs are the size for which the goals are meant, the default is a hundredth. PostgreSQL and MariaDB
have 20 pod runs and 50 segments for each job (or those of ``--rows PODS,SEGMENTS``), SQLite 2 and
5; with ``--retained`` jobs that ended longer ago than the default retention have none. There is no
peer: the figures are compared with fixed goals. Servers run with fsync. Beside the time, the
processor time of the program and the server together is printed: other load on the machine
changes it less.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Engine, event

from benchmarks.brain.databases import mariadb, missing_programs, postgresql
from benchmarks.brain.history_rows import (
    CLUSTER,
    DAYS,
    NOW_MS,
    SECRET,
    HistorySize,
    job,
    load,
)
from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.facts.records import PodRun
from gangline.brain.store.context import Fact
from gangline.brain.store.deletion import RetentionSettings
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.reader import HistoryFilter
from gangline.cli.event_loop import GC_THRESHOLDS

Processor: TypeAlias = Callable[[], float]
"""Seconds of processor time so far."""
SAMPLES = 300
WARM_UP = 30
"""A server plans a statement of a connection anew until it has seen it a few times."""
FACTS = 500
GOALS_MS = {"sqlite": (80, 30, 150), "postgresql": (50, 20, 100), "mariadb": (50, 20, 100)}
"""p99 of similar runs, of history, and of an insert of 500 facts."""
STATEMENT_GOAL_MS = 200
PRUNED_DAYS = DAYS // 100


@contextlib.contextmanager
def opened(name: str) -> Iterator[tuple[str, Processor]]:
    """Yield the address of an empty database, and what measures its server's processor time."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder, 'brain.db')}", lambda: 0.0
        return
    with {"postgresql": postgresql, "mariadb": mariadb}[name](durable=True) as server:
        yield server.create_database("brain"), server.processor_s


class Times(NamedTuple):
    """Times of one kind of work, in milliseconds."""

    wall: list[float]
    processor: list[float]

    def __str__(self) -> str:
        return "  ".join(
            f"{name} p50 {statistics.median(times):6.1f} ms  p99 {percentile(times):6.1f} ms"
            for name, times in (("time", self.wall), ("processor", self.processor))
        )


def percentile(times: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]


def measured(work: Callable[[int], object], server: Processor, samples: int = SAMPLES) -> Times:
    """Measure ``work`` several times."""
    for number in range(WARM_UP):
        work(-1 - number)
    found = Times([], [])
    for number in range(samples):
        used, begun = time.process_time() + server(), time.perf_counter()
        work(number)
        found.wall.append((time.perf_counter() - begun) * 1000)
        found.processor.append((time.process_time() + server() - used) * 1000)
    return found


class Facts:
    """Batches of 500 facts of jobs that exist: half of them segments, half of them pod runs."""

    def __init__(self, size: HistorySize) -> None:
        self._size = size
        self._numbers = itertools.count()

    def batch(self) -> list[Fact]:
        """Facts of ten jobs that finished last, none of which was there before."""
        facts: list[Fact] = []
        serial = next(self._numbers)
        for each in range(10):
            uid = job(self._size, self._size.jobs - each).uid
            for n in range(FACTS // 20):
                since_ms = NOW_MS + (serial * 1000 + n) * 1000
                segment = SegmentFacts(
                    round=2 + serial,
                    since=since_ms,
                    until=since_ms + 1000,
                    nodes=4,
                    procs=32,
                    steps=100,
                    step_seconds=StepSeconds(1, 0.1),
                )
                pod = PodRun(
                    role="worker",
                    rank=n,
                    number=1 + serial,
                    node=f"node-{n}",
                    started_ms=NOW_MS,
                    ended_ms=NOW_MS + 1,
                    peak_memory_bytes=1 << 30,
                )
                facts += [Fact(CLUSTER, uid, segment), Fact(CLUSTER, uid, pod)]
        return facts


class Statements:
    """The times of statements of an engine, while it is entered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.slowest: tuple[float, str] = (0.0, "")

    def __enter__(self) -> "Statements":
        event.listen(self._engine, "before_cursor_execute", self._before)
        event.listen(self._engine, "after_cursor_execute", self._after)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._before)
        event.remove(self._engine, "after_cursor_execute", self._after)

    def _before(self, connection: Any, *_: object) -> None:
        connection.info["begun"] = time.perf_counter()

    def _after(self, connection: Any, _cursor: object, statement: str, *_: object) -> None:
        taken = (time.perf_counter() - connection.info["begun"]) * 1000
        self.slowest = max(self.slowest, (taken, statement))


async def pruning(
    store: Store, facts: Facts, size: HistorySize
) -> tuple[int, float, tuple[float, str]]:
    """Delete a hundredth while facts are inserted; rows, p99 of inserts, slowest statement."""
    done = asyncio.Event()
    times: list[float] = []

    async def insert() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            await store.update(lambda write: write.facts(facts.batch()))
            times.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(0.2)

    days = DAYS - PRUNED_DAYS
    settings = RetentionSettings(
        segments_days=days * size.segment_days // DAYS,
        pods_days=days * size.pod_days // DAYS,
        jobs_days=days,
    )
    with Statements(store.engine) as statements:
        async with asyncio.TaskGroup() as group:
            group.create_task(insert())
            deleted = await store.prune(NOW_MS, settings, pause_s=0.0)
            done.set()
    return sum(deleted.values()), percentile(times), statements.slowest


def measure(name: str, size: HistorySize) -> None:
    """Fill one database, measure it, and print the figures."""
    jobs = size.jobs
    chosen = random.Random(1)
    with opened(name) as (address, server):
        store = open_store(address, secret=SECRET, clock_ms=lambda: NOW_MS)
        begun = time.perf_counter()
        load(store.engine, size)
        took = time.perf_counter() - begun
        print(
            f"{name}: {jobs:,} jobs, {size.pods:,} pod runs, {size.segments:,} segments"
            f" (loaded in {took:.0f} s)",
            flush=True,
        )
        facts = Facts(size)
        recent = max(1, jobs * 30 // DAYS)

        def similar(_: int) -> object:
            asked = job(size, jobs - chosen.randrange(recent))
            return store.read.similar_runs(asked, now_ms=NOW_MS)

        def history(number: int) -> object:
            asked = job(size, 1 + chosen.randrange(jobs))
            if number % 2:
                return store.read.run(CLUSTER, asked.uid)
            return store.read.history(
                HistoryFilter(cluster=CLUSTER, namespace=asked.namespace, owner=asked.owner)
            )

        works = {
            "similar runs of a job": similar,
            "history: a run, or a page of 100 jobs": history,
            f"insert of {FACTS} facts": lambda _: store.write.facts(facts.batch()),
        }
        for (label, work), goal in zip(works.items(), GOALS_MS[name], strict=True):
            print(f"  {label:40} {measured(work, server)} (p99 to reach: {goal})", flush=True)
        print(f"  load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        rows, p99, (slowest, statement) = asyncio.run(pruning(store, facts, size))
        print(
            f"  pruning {rows:,} rows: slowest statement {slowest:.1f} ms"
            f" (to reach: {STATEMENT_GOAL_MS})"
        )
        print(f"    {' '.join(statement.split())[:100]}")
        print(f"    insert of {FACTS} facts meanwhile p99 {p99:.1f} ms", flush=True)
        store.close()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.brain.store")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--databases", default="postgresql,mariadb,sqlite")
    parser.add_argument("--rows", default="20,50")
    parser.add_argument("--retained", action="store_true")
    asked = parser.parse_args(arguments or [])
    pods, segments = map(int, asked.rows.split(","))
    gc.set_threshold(*GC_THRESHOLDS)  # as ``gangline brain`` does
    missing = missing_programs()
    for name in asked.databases.split(","):
        if name in missing:
            print(f"{name}: not measured, {missing[name]} is not installed")
        else:
            rows = (2, 5) if name == "sqlite" else (pods, segments)
            measure(name, HistorySize(asked.jobs, *rows, retained=asked.retained))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
