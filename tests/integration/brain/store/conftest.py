"""A store in each of the databases, empty for each test."""

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks.brain.databases import DatabaseServer, mariadb, missing_programs, postgresql

from gangline.brain.store.engine import Store, open_store

SERVERS = {"postgresql": postgresql, "mariadb": mariadb}
DATABASES = ("sqlite", *SERVERS)
REQUIRED = "GANGLINE_REQUIRE_DATABASES"
"""Environment variable: a missing server fails the tests instead of skipping them."""


@pytest.fixture(scope="session")
def servers() -> Iterator["Servers"]:
    with Servers() as running:
        yield running


class Servers(contextlib.ExitStack):
    """Servers that run, started when they are asked for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[str, DatabaseServer] = {}

    def get(self, name: str) -> DatabaseServer:
        if name not in self._running:
            require(name)
            self._running[name] = self.enter_context(SERVERS[name]())
        return self._running[name]


def require(name: str) -> None:
    missing = missing_programs().get(name)
    if missing is None:
        return
    reason = f"no {missing} here: install Debian's {name} package"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}; {REQUIRED} is set")
    pytest.skip(reason)


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> str:
    """URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/brain.db"
    return servers.get(request.param).create_database(new_name("brain"))


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What stores have reported."""
    return [vars(record)["problem"] for record in caplog.records if record.msg == "history"]


def new_name(prefix: str) -> str:
    """A name of a database or user that no other test of this run uses."""
    return f"{prefix}_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    opened = open_store(address, secret=b"a secret of the tests")
    yield opened
    opened.close()


def run_together(*works: Callable[[], object]) -> None:
    """Run functions in threads that start together; raises the first of their errors."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> object:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(run, work) for work in works]:
            done.result()
