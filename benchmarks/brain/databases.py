"""Starts PostgreSQL and MariaDB in folders of their own: no network, a Unix socket, no rights.

Both refuse to run as root; root runs them as the system's user of the database, or as ``nobody``.
Tests use this module as well.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql

_START_TIMEOUT_S = 60.0


class DatabaseServer(Protocol):
    """A server that can be stopped and started."""

    name: str
    folder: Path

    def address(self, database: str) -> str:
        """URL of a database."""

    def create_database(self, database: str) -> str:
        """Create a database and return its URL."""

    def connect(self, database: str) -> Any:
        """Connect with the driver, as the user who may do everything."""

    def start(self) -> None:
        """Start it; returns when it answers."""

    def stop(self) -> None:
        """Stop it at once, as in a sudden loss of power."""

    def freeze(self) -> None:
        """Stop all of its processes without ending them."""

    def thaw(self) -> None:
        """Let them go on."""

    def processor_s(self) -> float:
        """Processor time of the threads and processes that it has now, in seconds."""


def missing_programs() -> dict[str, str]:
    """Return which program is missing, by the name of the database."""
    needed = {"postgresql": ("initdb", "postgres"), "mariadb": ("mariadb-install-db", "mariadbd")}
    return {
        database: program
        for database, programs in needed.items()
        for program in programs
        if _find(program) is None
    }


@contextlib.contextmanager
def postgresql(*, durable: bool = False) -> Iterator["Postgres"]:
    """Run a PostgreSQL server in a temporary folder."""
    with _folder("postgres") as (folder, user):
        server = Postgres(folder, user, durable=durable)
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def mariadb(*, durable: bool = False) -> Iterator["MariaDb"]:
    """Run a MariaDB server in a temporary folder."""
    with _folder("mysql") as (folder, user):
        server = MariaDb(folder, user, durable=durable)
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()


class _Server:
    name: str

    def __init__(self, folder: Path, user: str | None, *, durable: bool) -> None:
        self.folder = folder
        self._user = user
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None, "it runs"
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None, "it runs"
        os.killpg(self._process.pid, signal.SIGCONT)

    def processor_s(self) -> float:
        assert self._process is not None, "it runs"
        own = Path(f"/proc/{self._process.pid}/task")
        tasks = list(own.iterdir())
        for child in (own / str(self._process.pid) / "children").read_text().split():
            tasks += Path(f"/proc/{child}/task").glob("*")
        found = 0
        for task in tasks:
            with contextlib.suppress(OSError):  # it has ended
                found += int((task / "schedstat").read_text().split()[0])
        return found / 1e9

    @property
    def _environment(self) -> dict[str, str]:
        # A starting MariaDB deletes the temporary tables of all others in the same folder.
        return {**os.environ, "TMPDIR": str(self.folder)}

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            user=self._user,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stdout.decode()}{done.stderr.decode()}")

    def _launch(self, *command: str | Path) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                user=self._user,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _wait(self, listening: Path, connect: Callable[[], Any]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers(listening, connect):
            assert self._process is not None, "it was launched"
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{self.name} does not answer: {log[-2000:]}")
            time.sleep(0.05)

    @staticmethod
    def _answers(listening: Path, connect: Callable[[], Any]) -> bool:
        # PyMySQL does not close the socket of a connection that is refused, hence the first try.
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(listening))
            with contextlib.suppress(psycopg.OperationalError, pymysql.err.OperationalError):
                connect().close()
                return True
        return False


class Postgres(_Server):
    """PostgreSQL on a Unix socket."""

    name = "postgresql"

    def initialise(self) -> None:
        """Make the folder of the data."""
        options = ("--auth=trust", "--username=gangline", "--encoding=UTF8", "--locale=C")
        self._run(_program("initdb"), *options, "--no-sync", "-D", self.folder / "data")

    def start(self) -> None:
        # Processes that were killed leave their shared memory; the next start removes it.
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "shared_buffers": "1GB" if self._durable else "64MB",
            "maintenance_work_mem": "512MB",
            "max_wal_size": "4GB",
            # A table that is filled in the transaction that emptied it is not logged.
            "wal_level": "minimal",
            "max_wal_senders": "0",
        }
        arguments = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        self._launch(_program("postgres"), "-D", self.folder / "data", *arguments)
        self._wait(self.folder / ".s.PGSQL.5432", self.connect)

    def connect(self, database: str = "postgres") -> "psycopg.Connection[Any]":
        """Connect with the driver."""
        return psycopg.connect(
            host=str(self.folder), user="gangline", dbname=database, autocommit=True
        )

    def address(self, database: str) -> str:
        return f"postgresql://gangline@/{database}?host={self.folder}"

    def create_database(self, database: str) -> str:
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.address(database)


class MariaDb(_Server):
    """MariaDB on a Unix socket."""

    name = "mariadb"

    def initialise(self) -> None:
        """Make the folder of the data."""
        self._run(
            _program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def start(self) -> None:
        # The defaults that many servers have: our tables must not depend on them.
        self._launch(
            _program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self._socket}",
            f"--pid-file={self.folder / 'pid'}",
            "--skip-networking",
            "--character-set-server=latin1",
            "--collation-server=latin1_swedish_ci",
            f"--innodb-buffer-pool-size={'1G' if self._durable else '64M'}",
            f"--innodb-flush-log-at-trx-commit={1 if self._durable else 2}",
            f"--innodb-log-file-size={'1G' if self._durable else '48M'}",
        )
        self._wait(self._socket, self.connect)

    @property
    def _socket(self) -> Path:
        return self.folder / "socket"

    def connect(self, database: str | None = None) -> "pymysql.connections.Connection[Any]":
        """Connect with the driver."""
        return pymysql.connect(
            unix_socket=str(self._socket), user="root", database=database, autocommit=True
        )

    def address(self, database: str) -> str:
        return f"mysql://root@localhost/{database}?unix_socket={self._socket}"

    def create_database(self, database: str) -> str:
        connection = self.connect()
        try:
            connection.cursor().execute(f"CREATE DATABASE `{database}`")
        finally:
            connection.close()
        return self.address(database)


@contextlib.contextmanager
def _folder(system_user: str) -> Iterator[tuple[Path, str | None]]:
    user = None
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as name:  # a socket has 107 bytes
        if os.geteuid() == 0:
            user = _existing_user(system_user)
            shutil.chown(name, user)
        yield Path(name), user


def _existing_user(name: str) -> str:
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        return "nobody"


def _program(name: str) -> Path:
    found = _find(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _find(name: str) -> Path | None:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found:
        return Path(found)
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    return versions[-1] if versions else None


def _version(path: Path) -> int:
    number = path.parts[-3]
    return int(number) if number.isdigit() else 0
