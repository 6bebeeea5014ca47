"""Opens a store, and runs its reads and writes beside an event loop.

One thread writes, a few read. The synchronous drivers are used there: those of asyncio bring more
dependencies and are not faster. ``Store.add`` never waits for the database; ``Store.flush`` writes
what was added, and keeps it if it cannot.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from sqlalchemy import Connection, Engine, select

from gangline.brain.store.context import Context, Fact, FactBuffer, Keys
from gangline.brain.store.deletion import Forget, RetentionSettings, forget, pruning_steps
from gangline.brain.store.errors import BadAddress, NoRights, StoreError, StoreUnavailable
from gangline.brain.store.reader import Reader
from gangline.brain.store.records import RecordStore
from gangline.brain.store.sql import tables
from gangline.brain.store.sql.database import Database, parse_address
from gangline.brain.store.sql.rows import upsert
from gangline.brain.store.writer import Writer, Written

T = TypeVar("T")

READERS: Final = 4
_SECRET_BYTES: Final = 32


def open_store(
    url: str,
    *,
    migrate: bool = True,
    secret: bytes | None = None,
    digest_names: bool = False,
    wait_for_server: bool = False,
    clock_ms: Callable[[], int] | None = None,
) -> "Store":
    """Open the history.

    Args:
        url: ``sqlite:////folder/brain.db``, ``postgresql://user@host/database`` or
            ``mysql://user@host/database``.
        migrate: bring an older schema up to date. Otherwise it is refused.
        secret: key of the digests that are stored in the place of names and commands; None: a file
            beside a SQLite database (``brain.db.key``), else a row of the database.
        digest_names: store digests of owners and of names of jobs.
        wait_for_server: return a store that is not healthy, instead of raising, if the server
            cannot be reached at the moment; it connects later.
        clock_ms: the present time, milliseconds since 1970 UTC.

    Raises:
        BadAddress: the URL is wrong, or its driver or database is missing.
        NoRights: the server refuses the user, or the file may not be written.
        WrongSchema: a newer version of Gangline has migrated the database, or the schema is older,
            and ``migrate`` is false.
        StoreUnavailable: the server cannot be reached.
        StoreFull: the disk of the database is full.
    """
    address = parse_address(url)
    database = Database(address, readers=READERS, migrate=migrate)
    if database.file is not None:
        _check_file(database.file)
    context = Context(
        database=database,
        keys=Keys(secret or b""),
        clock_ms=clock_ms or (lambda: time.time_ns() // 1_000_000),
        digest_names=digest_names,
        load_secret=None if secret else partial(_load_secret, database),
    )
    try:
        context.prepare()
    except StoreError as error:
        if not (wait_for_server and isinstance(error, StoreUnavailable)):
            database.engine.dispose()
            raise
    return Store(context)


class Store:
    """The history of the Brain; ``async with`` closes it.

    ``read`` and ``write`` are synchronous, for programs without an event loop and for tests: each
    method blocks until the database has answered. In an event loop use ``query`` and ``update``.
    All raise ``StoreError``; at an outage ``StoreUnavailable`` or ``StoreFull``.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.read = Reader(context)
        self.write = Writer(context)
        self.records = RecordStore(context)
        self.buffer = FactBuffer()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="brain-store-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="brain-store-reader")

    @property
    def engine(self) -> Engine:
        """The engine of the database, for measurements."""
        return self._context.database.engine

    @property
    def problem(self) -> StoreError | None:
        """Why the last transaction failed; None while the database answers."""
        return self._context.database.problem

    @property
    def healthy(self) -> bool:
        """Whether the history can be read and written, as far as the last transaction shows."""
        return self.problem is None

    @property
    def damage(self) -> str:
        """Which damaged file was replaced by an empty one since the start; empty: none."""
        return self._context.database.damage

    @property
    def losses(self) -> int:
        """How often facts that the store had taken were lost; the number only grows."""
        return self._context.database.renewed + self.buffer.dropped

    def digest(self, *parts: object) -> str:
        """Return a keyed digest of JSON values: equal ones match within this database only."""
        return self._context.keys.digest(*parts)

    def add(self, facts: Iterable[Fact]) -> None:
        self.buffer.put(facts)

    async def query(self, work: Callable[[Reader], T]) -> T:
        """Run ``work`` in a thread that reads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, self.read)

    async def update(self, work: Callable[[Writer], T]) -> T:
        """Run ``work`` in the thread that writes, after what it was given before."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, self.write)

    async def flush(self) -> Written:
        """Write the buffered facts; those that cannot be written stay."""
        return await self.update(lambda _: self.flush_now())

    def flush_now(self) -> Written:
        """Write the buffered facts in this thread; see ``flush``."""
        facts = self.buffer.take(self.buffer.capacity)
        written = self.write.facts(facts, on_batch=self.buffer.discard)
        self.buffer.put(written.orphans)
        return written

    async def prune(
        self, now_ms: int, settings: RetentionSettings, *, pause_s: float = 0.05
    ) -> Counter[str]:
        """Delete what is older than ``settings`` allow; return the numbers of rows by table.

        Other writes happen between its transactions of at most 500 rows. What is left after an
        error goes the next time.
        """
        deleted: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        for name, step in pruning_steps(settings, now_ms):
            while rows := await loop.run_in_executor(self._writer, self._context.write, step):
                deleted[name] += rows
                await asyncio.sleep(pause_s)
        return deleted

    def forget(self, asked: Forget) -> int:
        """Forget an owner, a namespace or a job, and return the number of jobs."""
        return forget(self._context, asked)

    def close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._context.database.engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


def _check_file(path: Path) -> None:
    """Refuse a path at which no SQLite file can be, with words that SQLite does not have."""
    folder = path.parent
    try:
        if not folder.is_dir():
            raise BadAddress(f"the folder {folder} of the database does not exist: create it")
        if path.is_dir():
            raise BadAddress(f"{path} is a folder: name a file for the database")
        needs = path if path.exists() else folder
    except PermissionError as error:  # a folder on the way is closed
        raise NoRights(_no_access(path)) from error
    if not os.access(needs, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK):
        raise NoRights(_no_access(needs))
    # Records have lines of logs: a new file, and those that SQLite puts beside it, are the owner's.
    path.touch(mode=0o600)


def _no_access(path: Path) -> str:
    return f"{path} may not be read and written by user {os.geteuid()}"


def _load_secret(database: Database) -> bytes:
    if database.file is None:
        return database.transact(_stored_secret, writes=True)
    path = database.file.with_name(database.file.name + ".key")
    with contextlib.suppress(FileExistsError), open(path, "xb", opener=_open_own) as file:
        file.write(secrets.token_bytes(_SECRET_BYTES))
    return path.read_bytes()


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stored_secret(connection: Connection) -> bytes:
    setting = tables.setting
    value = {"name": "secret", "value": secrets.token_bytes(_SECRET_BYTES)}
    upsert(connection, setting, [value], ["name"], replace=False)
    query = select(setting.c.value).where(setting.c.name == "secret")
    return bytes(connection.execute(query).scalar_one())
