"""The schema: made, compared, refused if it is newer; several programs at once (G5).

Takes 25 s: each test makes a database, on three servers.
"""

import itertools
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from benchmarks.brain.databases import DatabaseServer
from sqlalchemy import create_engine, event, inspect, text

from brain_records import a_run
from gangline.brain.store.context import facts_of
from gangline.brain.store.engine import open_store
from gangline.brain.store.errors import BadAddress, NoRights, StoreUnavailable, WrongSchema
from gangline.brain.store.sql import database as schema
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.database import Database, parse_address, upgrade
from integration.brain.store.conftest import SERVERS, Servers, new_name, problems, run_together


def test_migrations_make_the_schema_of_the_tables(address: str) -> None:
    store = open_store(address)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        inspector = inspect(connection)
        for table in tables.metadata.sorted_tables:
            found = [
                inspector.get_pk_constraint(table.name)["constrained_columns"],
                *(each["column_names"] for each in inspector.get_indexes(table.name)),
                *(each["column_names"] for each in inspector.get_unique_constraints(table.name)),
            ]
            indexed = {columns[0] for columns in found}
            for column in table.columns:
                assert not column.foreign_keys or column.name in indexed, column
    store.close()


def test_g5_data_and_secret_are_kept_from_start_to_start(address: str) -> None:
    with pytest.raises(WrongSchema, match=r"does not exist.*gangline brain migrate"):
        open_store(address, migrate=False)
    digests = set()
    for migrate in (True, False):
        store = open_store(address, migrate=migrate)
        if migrate:
            store.write.runs([a_run(1)])
        assert store.read.run("cluster", "uid-1") == a_run(1)
        digests.add(store.digest("command"))
        store.close()
    assert len(digests) == 1


def test_programs_that_start_at_once_migrate_once(address: str) -> None:
    run_together(*[lambda: open_store(address, secret=b"secret").close()] * 4)


def test_migration_waits_for_another_one_and_never_runs_beside_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = servers.get("mariadb").create_database(new_name("brain"))
    monkeypatch.setattr(schema, "_LOCK_TIMEOUT_S", 1)
    monkeypatch.setattr(schema, "_LOCK_ATTEMPTS", 2)
    other = create_engine(address.replace("mysql:", "mysql+pymysql:"))
    with other.connect() as connection:
        connection.execute(text(f"SELECT GET_LOCK('gangline-{schema._LOCK}', 10)"))
        with pytest.raises(StoreUnavailable, match="another program has migrated it for 2 s"):
            open_store(address)
        with pytest.raises(WrongSchema, match="does not exist"):
            open_store(address, migrate=False)
    other.dispose()
    open_store(address).close()


def test_lock_of_mariadb_outlasts_the_transaction(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next program reads the number before the last one, and runs that revision again."""
    address = servers.get("mariadb").create_database(new_name("brain"))
    events: list[str] = []
    database = Database(parse_address(address), readers=1, migrate=True)

    def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        events.extend(
            name for name in ("GET_LOCK", "RELEASE_LOCK") if f"SELECT {name}" in statement
        )
        events.extend(["revision"] if "INTO alembic_version" in statement else ())

    event.listen(database.engine, "after_cursor_execute", executed)
    event.listen(database.engine, "commit", lambda _: events.append("commit"))
    upgrade(database.engine)
    database.engine.dispose()
    last = len(events) - events[::-1].index("revision")
    assert events[0] == "GET_LOCK"
    assert events[last : events.index("RELEASE_LOCK")] == ["commit"]


@pytest.mark.parametrize("statements", [2, 15, 26])
def test_migration_that_was_cut_off_is_finished_by_the_next_start(
    address: str, statements: int
) -> None:
    """On MariaDB each statement stays, on the others none does."""
    first = Database(parse_address(address), readers=1, migrate=True)
    changed = itertools.count(1)

    def cut_off(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.strip().startswith(("CREATE", "DROP")) and next(changed) == statements:
            raise KeyboardInterrupt

    event.listen(first.engine, "before_cursor_execute", cut_off)
    with pytest.raises(KeyboardInterrupt):
        upgrade(first.engine)
    first.engine.dispose()
    store = open_store(address)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("brain.db", "is not a URL: write sqlite:////folder", id="no URL"),
        pytest.param("oracle://host/db", "known are sqlite, postgresql", id="unknown server"),
        pytest.param("sqlite://", "names no file", id="SQLite in memory"),
        pytest.param("sqlite:////no/such/folder/b.db", "folder /no/such/folder", id="no folder"),
        pytest.param("sqlite:////tmp", "/tmp is a folder", id="a folder"),
        pytest.param("postgresql://user@host", "names no database: append /NAME", id="no name"),
    ],
)
def test_wrong_address_is_named(url: str, message: str) -> None:
    with pytest.raises(BadAddress, match=message):
        open_store(url)


def test_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    url = f"postgresql://user:very-secret@/brain?host={tmp_path}"
    with pytest.raises(StoreUnavailable, match="database postgresql") as error:
        open_store(url)
    assert "very-secret" not in str(error.value)


@pytest.mark.parametrize("address", ["postgresql", "mariadb"], indirect=True)
def test_missing_database_and_rights_are_named(address: str) -> None:
    name = str(parse_address(address).database)
    with pytest.raises(BadAddress, match=f"{name}_missing"):
        open_store(address.replace(name, f"{name}_missing"))
    stranger = address.replace("gangline@", "stranger@").replace("root@", "stranger@")
    with pytest.raises(NoRights, match="stranger"):
        open_store(stranger)


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, servers: Servers) -> DatabaseServer:
    return servers.get(request.param)


def weak_user(server: DatabaseServer, database: str, *, reads: bool) -> str:
    """The address of a user who may connect, and at most read."""
    name = new_name("weak")
    if server.name == "postgresql":
        statements = [
            f"CREATE ROLE {name} LOGIN",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",  # the default since version 15
            *([f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"] if reads else ()),
        ]
    else:
        granted = "SELECT" if reads else "CREATE TEMPORARY TABLES"
        statements = [
            f"CREATE USER {name}@localhost",
            f"GRANT {granted} ON `{database}`.* TO {name}@localhost",
        ]
    connection = server.connect(database)
    try:
        for statement in statements:
            connection.cursor().execute(statement)
    finally:
        connection.close()
    return server.address(database).replace("gangline@", f"{name}@").replace("root@", f"{name}@")


@pytest.mark.parametrize("reads", [False, True])
def test_user_without_rights_to_the_tables_is_refused_by_name(
    server: DatabaseServer, reads: bool
) -> None:
    database = new_name("rights")
    address = server.create_database(database)
    if reads:
        open_store(address).close()
    weak = weak_user(server, database, reads=reads)
    with pytest.raises(NoRights, match=r"denied") as error:
        open_store(weak)
    assert database in str(error.value)


def test_rights_that_are_taken_away_stop_writing_and_are_reported(
    server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Facts stay in memory, and are written when the rights are back."""
    database = new_name("rights")
    address = server.create_database(database)
    open_store(address, secret=b"secret").close()
    weak = weak_user(server, database, reads=True)
    store = open_store(weak, secret=b"secret")
    store.add(facts_of(a_run(1)))
    for _ in range(2):
        with pytest.raises(NoRights):
            store.flush_now()
    assert not store.healthy
    [problem] = problems(caplog)
    assert "denied" in problem
    owner = open_store(address, secret=b"secret")
    owner.buffer.put(store.buffer.take(99))
    owner.flush_now()
    assert owner.read.run("cluster", "uid-1") == a_run(1)
    for opened in (store, owner):
        opened.close()
