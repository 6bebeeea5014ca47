"""What differs between the servers: addresses, connections, kinds of errors."""

import importlib.util
import sqlite3
from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from gangline.brain.store.errors import BadAddress

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


class Fault(Enum):
    """What an error of a driver means for its caller."""

    TRANSIENT = "transient"
    """The transaction lost against another one: run it again."""
    UNAVAILABLE = "unavailable"
    FULL = "full"
    CORRUPT = "corrupt"
    RIGHTS = "rights"
    MISSING = "missing"
    """No such database, or no such folder."""
    OTHER = "other"


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
    if kind == "sqlite" and (not url.database or url.database == ":memory:"):
        raise BadAddress(
            "the address of the database names no file: write sqlite:////folder/brain.db"
        )
    if kind != "sqlite" and not url.database:
        raise BadAddress(f"the address {printable(url)} names no database: append /NAME")
    if kind in ("mysql", "mariadb"):
        url = url.update_query_dict({"charset": "utf8mb4"})
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
    elif engine.dialect.name != "postgresql":
        event.listen(engine, "connect", _mysql_connected)
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


def _mysql_connected(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        # Without it MySQL would cut what is too long and store 0 for what is no number.
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")


_SQLITE: Final = {
    sqlite3.SQLITE_BUSY: Fault.TRANSIENT,
    sqlite3.SQLITE_LOCKED: Fault.TRANSIENT,
    sqlite3.SQLITE_FULL: Fault.FULL,
    sqlite3.SQLITE_IOERR: Fault.FULL,
    sqlite3.SQLITE_CORRUPT: Fault.CORRUPT,
    sqlite3.SQLITE_NOTADB: Fault.CORRUPT,
    sqlite3.SQLITE_READONLY: Fault.RIGHTS,
    sqlite3.SQLITE_PERM: Fault.RIGHTS,
    sqlite3.SQLITE_CANTOPEN: Fault.MISSING,
}
_POSTGRES: Final = {
    "40001": Fault.TRANSIENT,
    "40P01": Fault.TRANSIENT,
    "23503": Fault.TRANSIENT,  # an image or node was deleted, or used again, meanwhile
    "53100": Fault.FULL,
    "53300": Fault.UNAVAILABLE,
    "57P01": Fault.UNAVAILABLE,
    "57P02": Fault.UNAVAILABLE,
    "57P03": Fault.UNAVAILABLE,
    "57014": Fault.UNAVAILABLE,  # the statement took longer than its limit
    "28000": Fault.RIGHTS,
    "28P01": Fault.RIGHTS,
    "42501": Fault.RIGHTS,
    "25006": Fault.RIGHTS,  # the server is a read-only standby
    "3D000": Fault.MISSING,
}
_MYSQL: Final = {
    1213: Fault.TRANSIENT,
    1205: Fault.TRANSIENT,
    1020: Fault.TRANSIENT,
    1451: Fault.TRANSIENT,  # an image or node was deleted, or used again, meanwhile
    1452: Fault.TRANSIENT,
    1021: Fault.FULL,
    1114: Fault.FULL,
    1040: Fault.UNAVAILABLE,
    1053: Fault.UNAVAILABLE,
    1077: Fault.UNAVAILABLE,
    1079: Fault.UNAVAILABLE,
    1927: Fault.UNAVAILABLE,
    2002: Fault.UNAVAILABLE,
    2003: Fault.UNAVAILABLE,
    2006: Fault.UNAVAILABLE,
    2013: Fault.UNAVAILABLE,
    1044: Fault.RIGHTS,
    1045: Fault.RIGHTS,
    1142: Fault.RIGHTS,
    1290: Fault.RIGHTS,
    1698: Fault.RIGHTS,
    1049: Fault.MISSING,
}


def classify(error: DBAPIError) -> Fault:
    """Say what an error of the driver means."""
    origin: Any = error.orig
    if isinstance(origin, sqlite3.Error):
        code = getattr(origin, "sqlite_errorcode", 0) & 0xFF
        return _SQLITE.get(code, Fault.OTHER)
    number = origin.args[0] if origin is not None and origin.args else None
    if isinstance(number, int) and number in _MYSQL:
        return _MYSQL[number]
    if error.connection_invalidated:
        return Fault.UNAVAILABLE
    state = getattr(origin, "sqlstate", None)  # PyMySQL has one as well, but not for connections
    if state is not None:
        return _POSTGRES.get(state, Fault.UNAVAILABLE if state[:2] == "08" else Fault.OTHER)
    if isinstance(number, int):
        return Fault.OTHER
    return _classify_connecting(str(origin))


def _classify_connecting(text: str) -> Fault:
    # psycopg has no code for an error before the connection is there, only the server's message.
    if "does not exist" in text and "database" in text:
        return Fault.MISSING
    for mark in ("password authentication failed", "no password supplied", "role", "pg_hba.conf"):
        if mark in text:
            return Fault.RIGHTS
    for mark in ("connection", "server", "timeout", "timed out", "translate host name", "resolve"):
        if mark in text:
            return Fault.UNAVAILABLE
    return Fault.OTHER
