"""One database: address, engine, schema, transactions with retries, and named errors.

What differs between SQLite, PostgreSQL, MariaDB and MySQL stands here: URLs, connections, kinds of
errors, and the lock of a migration. The schema is migrated by Alembic; revisions are numbers,
``0001`` the first, so that a newer one can be recognised.
"""

import contextlib
import importlib.util
import logging
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gangline.brain.store.errors import (
    BadAddress,
    NoRights,
    StoreError,
    StoreFull,
    StoreUnavailable,
    WrongSchema,
)

WRITE: Final = "gangline_write"
"""Execution option of a connection whose transaction will write."""
_CONNECT_TIMEOUT_S: Final = 5
_STATEMENT_TIMEOUT_S: Final = 30
"""Bounds every wait for a server that is frozen or unreachable."""

_DRIVERS: Final = {
    "sqlite": ("sqlite", "sqlite3", ""),
    "postgresql": ("postgresql+psycopg", "psycopg", "gangline[brain-postgres]"),
    "postgres": ("postgresql+psycopg", "psycopg", "gangline[brain-postgres]"),
    "mysql": ("mysql+pymysql", "pymysql", "gangline[brain-mysql]"),
    "mariadb": ("mariadb+pymysql", "pymysql", "gangline[brain-mysql]"),
}


def parse_address(address: str) -> URL:
    """Read a URL of a database; the driver is ours to choose.

    Raises:
        BadAddress: it is not a URL, not of a known server, or the driver is not installed.
    """
    try:
        url = make_url(address)
    except ArgumentError as exc:
        raise BadAddress(
            "the address of the database is not a URL: write sqlite:////folder/brain.db, "
            "postgresql://user@host/database or mysql://user@host/database"
        ) from exc
    kind = url.get_backend_name()
    if kind not in _DRIVERS:
        raise BadAddress(
            f"the address of the database begins with {url.drivername!r}: known are "
            "sqlite, postgresql, mysql and mariadb"
        )
    name, module, extra = _DRIVERS[kind]
    if importlib.util.find_spec(module) is None:
        raise BadAddress(f"{kind} needs the package {module}: pip install '{extra}'")
    if kind == "sqlite" and url.database in (None, "", ":memory:"):
        raise BadAddress(
            "the address of the database names no file: write sqlite:////folder/brain.db"
        )
    if not url.database:
        raise BadAddress(f"the address {printable(url)} names no database: append /NAME")
    return url.set(drivername=name)


def printable(url: URL) -> str:
    """The address without its password."""
    return url.render_as_string(hide_password=True)


def make_engine(url: URL, readers: int) -> Engine:
    """Return an engine for one writer and ``readers`` readers. It does not connect yet."""
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}
    match url.get_backend_name():
        case "sqlite":
            arguments = {"timeout": 5.0, "check_same_thread": False}
        case "postgresql":
            settings = {
                "statement_timeout": _STATEMENT_TIMEOUT_S * 1000,
                "timezone": "UTC",
                # Statements are short: to compile one takes longer than to run it.
                "jit": "off",
            }
            arguments = {
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": _STATEMENT_TIMEOUT_S * 1000,
                "application_name": "gangline-brain",
            }
        case _:
            # Locks of gaps, which REPEATABLE READ takes, would make batches of inserts deadlock.
            options = {"isolation_level": "READ COMMITTED"}
            arguments = {
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "read_timeout": _STATEMENT_TIMEOUT_S,
                "write_timeout": _STATEMENT_TIMEOUT_S,
                "charset": "utf8mb4",
                # Without it MySQL would cut what is too long and store 0 for what is no number.
                "sql_mode": "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION",
            }
    engine = create_engine(
        url,
        pool_size=readers + 1,
        max_overflow=1,
        pool_timeout=_STATEMENT_TIMEOUT_S,
        pool_pre_ping=url.get_backend_name() != "sqlite",
        connect_args=arguments,
        **options,
    )
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _sqlite_connected)
        event.listen(engine, "begin", _sqlite_begins)
    return engine


def _sqlite_connected(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver would begin transactions by itself, deferred
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=5000",
        "cache_size=-16384",  # KiB of each connection
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _sqlite_begins(connection: Connection) -> None:
    # A deferred transaction that has read cannot become a writer while another one writes.
    writes = connection.get_execution_options().get(WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class TransactionConflict(StoreUnavailable):
    """The transaction lost against another one: run it again."""


class DamagedFile(StoreError):
    """The file is not a database, or its pages contradict each other."""


_CODES: Final[dict[type[StoreError], tuple[int | str, ...]]] = {
    TransactionConflict: (
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, 1213, 1205, 1020, "40001", "40P01",
        1451, 1452, "23503",  # a job was deleted meanwhile
    ),
    StoreUnavailable: (
        1040, 1053, 1077, 1079, 1927, 2002, 2003, 2006, 2013, "53300", "57P01", "57P02", "57P03",
        "57014",  # the statement took longer than its limit
    ),
    StoreFull: (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, 1021, 1114, "53100"),
    DamagedFile: (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
    NoRights: (
        sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, 1044, 1045, 1142, 1290, 1698,
        "28000", "28P01", "42501", "25006",  # the server is a read-only standby
    ),
    BadAddress: (sqlite3.SQLITE_CANTOPEN, 1049, "3D000"),
}  # fmt: skip
"""What the codes of errors mean: small ones of SQLite, others of MySQL, texts of PostgreSQL."""
_BY_CODE: Final = {code: kind for kind, codes in _CODES.items() for code in codes}


def classify(error: DBAPIError) -> type[StoreError] | None:
    """Return what an error of a driver means for its caller; None: it is a mistake of ours."""
    origin: Any = error.orig
    if isinstance(origin, sqlite3.Error):
        return _BY_CODE.get(getattr(origin, "sqlite_errorcode", 0) & 0xFF)
    number = origin.args[0] if origin is not None and origin.args else None
    if isinstance(number, int) and number in _BY_CODE:
        return _BY_CODE[number]
    if error.connection_invalidated:
        return StoreUnavailable
    state = getattr(origin, "sqlstate", None)  # PyMySQL has one as well, but not for connections
    if state is not None:
        return _BY_CODE.get(state, StoreUnavailable if state[:2] == "08" else None)
    return None if isinstance(number, int) else _classify_connecting(str(origin))


def _classify_connecting(text: str) -> type[StoreError] | None:
    # psycopg has no code for an error before the connection is there, only the server's message.
    if "does not exist" in text and "database" in text:
        return BadAddress
    if re.search("password authentication failed|no password supplied|role|pg_hba.conf", text):
        return NoRights
    is_away = re.search("connection|server|timeout|timed out|translate host name|resolve", text)
    return StoreUnavailable if is_away else None


_LOCK: Final = 7238941
"""Number of the advisory lock that a migration takes; any number that others do not use."""
_LOCK_TIMEOUT_S: Final = 25
"""Less than the time after which the driver gives a statement up."""
_LOCK_ATTEMPTS: Final = 12


def prepare(engine: Engine, *, migrate: bool) -> None:
    """Bring the schema up to date, or check that it is.

    Raises:
        WrongSchema: the database's schema is newer than the program's, or older, and ``migrate``
            is false.
        StoreUnavailable: other programs have migrated it for five minutes.
    """
    newest = known_version()
    with engine.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    stored = int(revision) if revision else 0
    if stored > newest:
        raise WrongSchema(
            f"the schema of the database has version {stored}, and this version of gangline knows "
            f"versions up to {newest}: start a newer gangline, or restore a backup"
        )
    if stored < newest and not migrate:
        state = f"has version {stored}" if stored else "does not exist"
        raise WrongSchema(
            f"the schema of the database {state}, and this version of gangline needs version "
            f"{newest}: run `gangline brain migrate`, or start without --no-migrate"
        )
    if stored < newest:
        upgrade(engine)


def known_version() -> int:
    """Return the newest version of the schema that this program knows."""
    head = ScriptDirectory.from_config(_configuration()).get_current_head()
    assert head is not None, "there is a first revision"
    return int(head)


def upgrade(engine: Engine) -> None:
    """Migrate to the newest version. Of several programs at once one migrates, the others wait."""
    config = _configuration()
    connecting = engine.connect().execution_options(**{WRITE: True})
    with connecting as connection, _migration_lock(connection):
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _configuration() -> Config:
    """Return the configuration of Alembic, without a file."""
    config = Config()
    config.set_main_option("script_location", "gangline.brain.store.sql:migrations")
    return config


@contextlib.contextmanager
def _migration_lock(connection: Connection) -> Iterator[None]:
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

    ``problem`` is None, or the last error, until a transaction succeeds again; each new one is
    logged once.
    """

    def __init__(self, url: URL, *, readers: int, migrate: bool) -> None:
        self.url = url
        self.file = Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
        self._migrate = migrate
        self.engine = make_engine(url, readers)
        self._ready = False
        self.problem: StoreError | None = None
        self.renewed = 0
        """How often a damaged SQLite file was replaced by an empty one."""
        self.damage = ""
        """What happened the last time."""

    def prepare(self) -> None:
        """Connect, check the version of the schema, and migrate it if that is allowed.

        A SQLite file that is damaged is renamed aside, and a new one is begun.

        Raises:
            BadAddress, NoRights, WrongSchema: trying again cannot help.
            StoreUnavailable, StoreFull: at the moment.
        """
        if not self._ready:
            self._guarded(lambda: prepare(self.engine, migrate=self._migrate))
            self._ready = True

    def transact(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run ``work`` in a transaction; at a conflict with others again, at most five times."""

        def transaction() -> T:
            connecting = self.engine.connect().execution_options(**{WRITE: writes})
            with connecting as connection, connection.begin():
                return work(connection)

        return self._guarded(transaction)

    def _guarded(self, work: Callable[[], T]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result = work()
            except DBAPIError as exc:
                kind, is_last = classify(exc), attempt == ATTEMPTS
                if kind is TransactionConflict and not is_last:
                    time.sleep(_FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
                    continue
                if kind is DamagedFile and self._set_aside(exc) and not is_last:
                    continue
                if kind is None:
                    raise
                text = f"{self._name}: {str(exc.orig).strip()}"
                if kind is StoreFull:
                    text += "; no facts are written until there is space"
                problem = kind(text)
                self._report(problem)
                raise problem from exc
            except PoolTimeout as exc:
                problem = StoreUnavailable(f"{self._name}: all connections are in use")
                self._report(problem)
                raise problem from exc
            self.problem = None
            return result
        raise AssertionError("the last attempt returns or raises")

    @property
    def _name(self) -> str:
        return f"database {printable(self.url)}"

    def _report(self, problem: StoreError) -> None:
        is_known = self.problem is not None and type(self.problem) is type(problem)
        self.problem = problem
        if not is_known:
            log.error("history", extra={"problem": str(problem)})

    def _set_aside(self, error: DBAPIError) -> bool:
        """Rename a damaged SQLite file; False if the database is none of SQLite."""
        path = self.file
        if path is None:
            return False
        self.engine.dispose()
        aside = path.with_name(f"{path.name}.damaged-{int(time.time() * 1000)}")
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        self.damage = (
            f"{self._name} is damaged ({str(error.orig).strip()}): it was renamed to {aside.name}, "
            "and a new one is begun"
        )
        log.error("history", extra={"problem": self.damage})
        prepare(self.engine, migrate=True)
        self.renewed += 1
        return True
