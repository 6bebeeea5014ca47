"""The version of the schema: compared with the program's, and migrated by Alembic.

Revisions are numbers, ``0001`` the first, so that a newer one can be recognised.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from gangline.brain.store.errors import NewerSchema, OldSchema, StoreUnavailable
from gangline.brain.store.sql import dialect

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
