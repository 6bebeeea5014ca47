"""Killed writers, stopped servers, a full disk, a damaged file: what was stored stays (G1, G3).

Takes 30 s: servers of databases are stopped and started.
"""

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from brain_records import a_job, a_pod, a_run, a_segment, job_fact, not_none
from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.store.context import Fact, facts_of
from gangline.brain.store.engine import Store, open_store
from gangline.brain.store.errors import StoreError, StoreFull, StoreUnavailable
from gangline.brain.store.reader import HistoryFilter
from integration.brain.store.conftest import SERVERS, problems, require

ACTION = GuardAction(job="uid-1", family="f", what=What.WORKERS, at_ms=1)
WRITER = """
import sys
from brain_records import a_run
from gangline.brain.store.engine import open_store

store = open_store(sys.argv[1], secret=b"a secret of the tests")
for number in range(1, 10_000):
    store.write.runs([a_run(number, segments=20, pods=20)])
    print(number, flush=True)
"""


def test_killed_writer_leaves_complete_transactions(store: Store, address: str) -> None:
    environment = os.environ | {"PYTHONPATH": "tests:."}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, address], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "15\n":
                process.send_signal(signal.SIGKILL)
                break
        reported = [15, *map(int, process.stdout)][-1]
    jobs = store.read.history(HistoryFilter(cluster="cluster", limit=500)).jobs
    assert reported <= len(jobs) <= reported + 1
    for job in jobs:
        run = not_none(store.read.run("cluster", job.uid))
        assert (len(run.segments), len(run.pods)) == (20, 20)
    store.write.runs([a_run(9_999)])


@pytest.fixture
def unclosed_sockets() -> Iterator[None]:
    """Let no later test see the sockets that PyMySQL leaves open when it cannot connect."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.usefixtures("unclosed_sockets")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_g3_no_fact_is_lost_while_the_server_is_stopped(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    require(name)
    with SERVERS[name]() as server:
        store = open_store(server.create_database("brain"), secret=b"s")
        store.write.runs([a_run(1)])
        fence = store.write.lead("cluster", "brain-0")
        server.stop()
        store.add(facts_of(a_run(2)))
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.flush_now()
        assert not store.healthy
        with pytest.raises(StoreUnavailable):
            store.write.begin_action("cluster", ACTION, fence=fence)
        store.add(facts_of(a_run(3)))
        assert len(problems(caplog)) == 1  # reported once
        server.start()
        store.flush_now()
        assert store.healthy
        assert len(store.buffer) == 0
        for number in (1, 2, 3):
            assert store.read.run("cluster", f"uid-{number}") == a_run(number)
        store.close()


@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.usefixtures("unclosed_sockets")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_store_is_opened_before_its_server(name: str) -> None:
    require(name)
    with SERVERS[name]() as server:
        address = server.create_database("brain")
        server.stop()
        with pytest.raises(StoreUnavailable):
            open_store(address)
        store = open_store(address, wait_for_server=True)
        store.add(facts_of(a_run(1)))
        assert not store.healthy
        server.start()
        store.flush_now()
        assert store.healthy
        assert store.read.run("cluster", "uid-1") == a_run(1)
        store.close()


def test_full_disk_stops_writing_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/brain.db")
    store.write.runs([a_run(1)])
    pages = limit_pages(store, 0)
    store.add(facts_of(a_run(2, segments=3000)))
    with pytest.raises(StoreFull, match="no facts are written until there is space"):
        store.flush_now()
    assert not store.healthy
    assert store.read.run("cluster", "uid-1") == a_run(1)
    [problem] = problems(caplog)
    assert "full" in problem
    event.remove(store.engine, "connect", pages)
    store.engine.dispose()
    store.flush_now()
    stored = not_none(store.read.run("cluster", "uid-2"))
    assert len(stored.segments) == 200
    store.close()


def limit_pages(store: Store, more: int) -> Any:
    """Give the file no more pages than it has, as on a full disk."""
    with store.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages + more}").close()

    event.listen(store.engine, "connect", limit)
    store.engine.dispose()
    return limit


def damage(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"no database " * (size // 12))


@pytest.mark.parametrize("is_open", [False, True], ids=["at the start", "while it is used"])
def test_damaged_file_is_set_aside(
    tmp_path: Path, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "brain.db"
    store = open_store(f"sqlite:///{path}")
    store.write.runs([a_run(1)])
    store.engine.dispose()  # the pages that connections have cached
    if not is_open:
        store.close()
    damage(path)
    if not is_open:
        store = open_store(f"sqlite:///{path}")
        assert store.read.run("cluster", "uid-1") is None
    store.write.runs([a_run(2)])
    assert store.healthy
    assert store.read.run("cluster", "uid-1") is None
    assert store.read.run("cluster", "uid-2") == a_run(2)
    [problem] = problems(caplog)
    assert "is damaged" in problem
    [aside] = [each for each in tmp_path.iterdir() if ".damaged-" in each.name]
    assert aside.name in problem
    assert store.damage == problem
    assert aside.read_bytes().startswith(b"no database")
    store.close()


def test_facts_wait_while_another_program_locks_the_file(tmp_path: Path) -> None:
    path = tmp_path / "brain.db"
    store = open_store(f"sqlite:///{path}")
    event.listen(store.engine, "connect", lambda c, _: c.execute("PRAGMA busy_timeout=10").close())
    store.engine.dispose()
    store.add([job_fact(a_job(1)), Fact("cluster", "uid-1", a_segment())])
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.flush_now()
    other.close()
    store.flush_now()
    assert len(store.buffer) == 0
    store.close()


async def test_loop_goes_on_while_the_store_works(store: Store) -> None:
    store.add([job_fact(a_job(1)), Fact("cluster", "uid-1", a_pod())])
    await store.flush()
    run = not_none(await store.query(lambda read: read.run("cluster", "uid-1")))
    assert run.pods == (a_pod(),)
    with pytest.raises(StoreError):
        await store.update(lambda write: write.update_action("cluster", ACTION, fence=9))
