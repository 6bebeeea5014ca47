"""Transactions with retries, and errors that name what is wrong.

The version of the schema: compared with the program's, and migrated by Alembic.

Revisions are numbers, ``0001`` the first, so that a newer one can be recognised.
"""

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gangline.brain.store.errors import (
    BadAddress,
    NewerSchema,
    NoRights,
    OldSchema,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from gangline.brain.store.sql import dialect
from gangline.brain.store.sql.dialect import Fault

_LOCK: Final = 7238941
"""Number of the advisory lock that a migration takes; any number that others do not use."""
_LOCK_TIMEOUT_S: Final = 25
"""Less than the time after which the driver gives a statement up."""
_LOCK_ATTEMPTS: Final = 12


def configuration() -> Config:
    """Return the configuration of Alembic, without a file."""
    config = Config()
    config.set_main_option("script_location", "gangline.brain.store.sql:migrations")
    return config


def known_version() -> int:
    """Return the newest version of the schema that this program knows."""
    head = ScriptDirectory.from_config(configuration()).get_current_head()
    assert head is not None, "there is a first revision"
    return int(head)


def found_version(connection: Connection) -> int:
    """Return the version of the database's schema, 0 if there is none."""
    revision = MigrationContext.configure(connection).get_current_revision()
    return int(revision) if revision else 0


def prepare(engine: Engine, *, migrate: bool) -> None:
    """Bring the schema up to date, or check that it is.

    Raises:
        NewerSchema: the database's schema is newer than the program's.
        OldSchema: it is older, and ``migrate`` is false.
    """
    known = known_version()
    with engine.connect() as connection:
        found = found_version(connection)
    if found > known:
        raise NewerSchema(found, known)
    if found == known:
        return
    if not migrate:
        raise OldSchema(found, known)
    upgrade(engine)


def upgrade(engine: Engine) -> None:
    """Migrate to the newest version. Of several programs at once one migrates, the others wait.

    Raises:
        StoreUnavailable: the others have migrated for five minutes.
    """
    config = configuration()
    connecting = engine.connect().execution_options(**{dialect.WRITE: True})
    with connecting as connection, _alone(connection):
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextlib.contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Hold the lock of migrations, and within it a transaction.

    The lock must outlast the transaction: the number of the last revision is visible to others only
    after the commit, and who had the lock before it would run that revision again.
    """
    match connection.dialect.name:
        case "postgresql":
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                yield
        case "sqlite":
            with connection.begin():  # BEGIN IMMEDIATE locks the file
                yield
        case _:
            name = {"name": f"gangline-{_LOCK}", "seconds": _LOCK_TIMEOUT_S}
            lock = text("SELECT GET_LOCK(:name, :seconds)")  # 0 if another one still has it
            if not any(connection.scalar(lock, name) for _ in range(_LOCK_ATTEMPTS)):
                raise StoreUnavailable(
                    f"another program has migrated it for {_LOCK_ATTEMPTS * _LOCK_TIMEOUT_S} s"
                )
            connection.commit()
            try:
                with connection.begin():
                    yield
            finally:
                connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)


log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS: Final = 5
"""Of a transaction that loses against others."""
_FIRST_PAUSE_S: Final = 0.01


class Database:
    """The engine of one database.

    ``problem`` is None, or the last error, until a transaction succeeds again. ``on_problem``
    receives the text of each new problem once, in the thread that met it.
    """

    def __init__(
        self, url: URL, *, readers: int, migrate: bool, on_problem: Callable[[str], None]
    ) -> None:
        self.url = url
        self._migrate = migrate
        self._on_problem = on_problem
        self._engine = dialect.make_engine(url, readers)
        self._ready = False
        self.problem: StoreError | None = None
        self.renewed = 0
        """How often a damaged SQLite file was replaced by an empty one."""

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database."""
        if self.url.get_backend_name() != "sqlite" or not self.url.database:
            return None
        return Path(self.url.database)

    @property
    def engine(self) -> Engine:
        """The engine, for measurements."""
        return self._engine

    def prepare(self) -> None:
        """Connect, check the version of the schema, and migrate it if that is allowed.

        A SQLite file that is damaged is renamed aside, and a new one is begun.

        Raises:
            BadAddress, NoRights, NewerSchema, OldSchema: trying again cannot help.
            StoreUnavailable, StoreFull: at the moment.
        """
        if not self._ready:
            self._guarded(lambda: prepare(self._engine, migrate=self._migrate))
            self._ready = True

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction that only reads; it must not keep the connection."""
        return self._transact(work, writes=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction; at a conflict with others again, at most five times."""
        return self._transact(work, writes=True)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _transact(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        self.prepare()

        def transaction() -> T:
            connecting = self._engine.connect().execution_options(**{dialect.WRITE: writes})
            with connecting as connection, connection.begin():
                return work(connection)

        return self._guarded(transaction)

    def _guarded(self, work: Callable[[], T]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result = work()
            except DBAPIError as exc:
                fault = dialect.classify(exc)
                if fault is Fault.TRANSIENT and attempt < ATTEMPTS:
                    time.sleep(_FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
                    continue
                if fault is Fault.CORRUPT and self._set_aside(exc) and attempt < ATTEMPTS:
                    continue
                problem = self._named(fault, exc)
                if problem is None:
                    raise
                self._report(problem)
                raise problem from exc
            except PoolTimeout as exc:
                busy = StoreUnavailable(f"{self._name}: all connections are in use")
                self._report(busy)
                raise busy from exc
            self.problem = None
            return result
        raise AssertionError("the last attempt returns or raises")

    @property
    def _name(self) -> str:
        return f"database {dialect.printable(self.url)}"

    def _named(self, fault: Fault, error: DBAPIError) -> StoreError | None:
        text = f"{self._name}: {str(error.orig).strip()}"
        match fault:
            case Fault.UNAVAILABLE | Fault.TRANSIENT:
                return StoreUnavailable(text)
            case Fault.FULL:
                return StoreFull(f"{text}; no facts are written until there is space")
            case Fault.RIGHTS:
                return NoRights(text)
            case Fault.MISSING:
                return BadAddress(text)
            case Fault.CORRUPT:
                return StoreError(text)
            case _:
                return None

    def _report(self, problem: StoreError) -> None:
        known = self.problem is not None and type(self.problem) is type(problem)
        self.problem = problem
        if not known:
            self._on_problem(str(problem))

    def _set_aside(self, error: DBAPIError) -> bool:
        """Rename a damaged SQLite file; False if the database is none of SQLite."""
        path = self.file
        if path is None:
            return False
        self._engine.dispose()
        aside = path.with_name(f"{path.name}.damaged-{int(time.time() * 1000)}")
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        self._on_problem(
            f"{self._name} is damaged ({str(error.orig).strip()}): it was renamed to {aside.name}, "
            "and a new one is begun"
        )
        prepare(self._engine, migrate=True)
        self.renewed += 1
        return True
