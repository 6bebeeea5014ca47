"""What writers and readers of one database share: buffered facts, secret, clock, stored names.

Facts are bounded, and merged by what they are about. Keyed digests stand for what is compared
without being stored, and are the keys of the levels of similarity.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, select

from gangline.brain.advisers.similarity import level_keys
from gangline.brain.facts.belief import CLUSTER_LENGTH, UID_LENGTH, believe, possible_text
from gangline.brain.facts.records import Record, RecordedJob, Run, merge
from gangline.brain.store.sql import rows, tables
from gangline.brain.store.sql.database import Database

MAX_ROWS: Final = 500
"""Of one transaction: a longer one would make readers and other writers wait."""
MAX_FACTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Fact:
    """A record of the job with this UID; a day of a node has no job, and an empty UID."""

    cluster: str
    uid: str
    record: Record

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the row that the fact is about."""
        return (type(self.record), self.cluster, self.uid, *self.record.key)


def facts_of(run: Run, before: Run | None = None) -> Iterator[Fact]:
    """Take a run apart, without the records that an earlier state of it had."""
    stored = {} if before is None else {fact.key: fact for fact in facts_of(before)}
    records: tuple[Record, ...] = (run.job, *run.segments, *run.pods)
    for record in records:
        fact = Fact(run.job.cluster, run.job.uid, record)
        if stored.get(fact.key) != fact:
            yield fact


def jobs_first(facts: Iterable[Fact]) -> list[Fact]:
    return sorted(facts, key=lambda fact: not isinstance(fact.record, RecordedJob))


class FactBuffer:
    """Facts by what they are about: a second observation of one thing is merged with the first.

    Any thread may use it. ``dropped`` counts facts that were lost because it was full: the oldest
    ones that are no jobs, since without its job no fact can be stored.
    """

    def __init__(self, capacity: int = MAX_FACTS) -> None:
        self.capacity = capacity
        self._facts: dict[tuple[Any, ...], Fact] = {}
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._facts)

    def put(self, facts: Iterable[Fact]) -> None:
        with self._lock:
            for fact in facts:
                before = self._facts.get(fact.key)
                record = fact.record if before is None else merge(before.record, fact.record)
                self._facts[fact.key] = Fact(fact.cluster, fact.uid, record)
            while len(self._facts) > self.capacity:
                others = (key for key in self._facts if key[0] is not RecordedJob)
                del self._facts[next(others, next(iter(self._facts)))]
                self.dropped += 1

    def take(self, limit: int) -> list[Fact]:
        """Return the oldest facts, jobs first; they stay until ``discard``."""
        with self._lock:
            return jobs_first(self._facts.values())[:limit]

    def discard(self, facts: Iterable[Fact]) -> None:
        """Remove facts that were written, unless a later observation has replaced them."""
        with self._lock:
            for fact in facts:
                if self._facts.get(fact.key) is fact:
                    del self._facts[fact.key]


MODEL_BUCKET: Final = 0.7
"""Natural logarithm of the ratio of parameters within one key of the model."""


class Keys:
    """Digests with the secret of one database: equal values match within it only."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, *parts: object) -> str:
        """Digest of ``parts`` as 32 hexadecimal characters."""
        return self._bytes(parts, 16).hex()

    def number(self, *parts: object) -> int:
        """Digest of ``parts`` as a positive integer of 63 bits, for an index."""
        return int.from_bytes(self._bytes(parts, 8), "big") >> 1

    def levels(self, job: RecordedJob, shift: int = 0) -> tuple[int | None, ...]:
        """Return the key of each level of ``advisers.similarity``; None: no job is equal.

        At level 4 all parameters within a factor of two have one key. ``shift`` asks for that of a
        neighbouring range.
        """
        parameters = job.model.params if job.model else None
        # The device of the role that was sized last, as ``advisers.similarity`` does.
        device = next((size.gpu_model for size in reversed(job.roles) if size.gpu_model), "")
        model = None
        if parameters and device:
            bucket = math.floor(math.log(parameters) / MODEL_BUCKET) + shift
            model = (job.cluster, device, bucket)
        keys = (*level_keys(job), model)
        return tuple(None if parts is None else self.number(*parts) for parts in keys)

    def _bytes(self, parts: tuple[object, ...], size: int) -> bytes:
        text = msgspec.json.encode(parts, order="deterministic")
        return hashlib.blake2b(text, digest_size=size, key=self._secret).digest()


S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


@dataclass
class Context:
    """Shared by the threads of one store."""

    database: Database
    keys: Keys
    clock_ms: Callable[[], int]
    digest_names: bool = False
    """Digests of owners and names are stored in their place."""
    load_secret: Callable[[], bytes] | None = None
    """Where the secret of ``keys`` comes from, once the database can be reached."""

    def prepare(self) -> None:
        """Connect, migrate, and load the secret, unless that has happened.

        Raises:
            StoreError: the database cannot be used; see ``Database.prepare``.
        """
        self.database.prepare()
        if self.load_secret is not None:
            self.keys = Keys(self.load_secret())
            self.load_secret = None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction that only reads; it must not keep the connection."""
        self.prepare()
        return self.database.transact(work, writes=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction; at a conflict with others again."""
        self.prepare()
        return self.database.transact(work, writes=True)

    def believe(self, facts: Iterable[Fact]) -> tuple[list[Fact], list[str]]:
        """Return the facts that are possible, with names as they are stored, and what is not."""
        now_ms = self.clock_ms()
        believed: list[Fact] = []
        refused: list[str] = []
        for fact in facts:
            record: Record | None
            record, dropped = believe(fact.record, now_ms)
            places = (fact.cluster, CLUSTER_LENGTH), (fact.uid, UID_LENGTH)
            if not all(possible_text(*place) for place in places):
                record, dropped = None, [f"{type(fact.record).__name__}.uid"]
            refused += [f"{name} is impossible" for name in dropped]
            if record is not None:
                stored = self.private(record) if isinstance(record, RecordedJob) else record
                believed.append(Fact(fact.cluster, fact.uid, stored))
        return believed, refused

    def private(self, named: S) -> S:
        """Return a struct with its owner, name and stem as they are stored."""
        names = ("owner", "name", "stem")
        return replace(named, **{part: self.private_name(getattr(named, part)) for part in names})

    def private_name(self, name: str) -> str:
        return self._digest(name) if self.digest_names and name else name

    def possible_names(self, name: str) -> list[str]:
        """Return how a name may have been stored, by this program or one with other settings."""
        return [name, self._digest(name)]

    def _digest(self, name: str) -> str:
        return name if name.startswith("digest:") else f"digest:{self.keys.digest('name', name)}"

    def job_row(self, job: RecordedJob) -> dict[str, Any]:
        keys = zip(tables.LEVEL_COLUMNS, self.keys.levels(job), strict=True)
        return rows.row_of(job, tables.job) | dict(keys)

    def forgotten_uids(self, connection: Connection, cluster: str, uids: set[str]) -> set[str]:
        """Return those UIDs whose jobs were forgotten."""
        digests = {self.mark("uid", cluster, uid): uid for uid in uids}
        return {digests[digest] for digest in self._times(connection, digests)}

    def mark(self, what: str, *parts: str) -> str:
        return self.keys.digest("forgotten", what, *parts)

    def forgotten(self, connection: Connection, jobs: Sequence[RecordedJob]) -> set[str]:
        """UIDs of those jobs that were submitted before their owner, name or namespace went."""
        marks = [
            (self.mark(*parts), job)
            for job in jobs
            for parts in (
                ("owner", job.cluster, job.owner),
                ("namespace", job.cluster, job.namespace),
                ("job", job.cluster, job.namespace, job.name),
            )
        ]
        times = self._times(connection, {digest for digest, _ in marks})
        return {job.uid for digest, job in marks if times.get(digest, -1) >= job.submitted_ms}

    def _times(self, connection: Connection, digests: Collection[str]) -> dict[str, int]:
        """Return when what the digests are of was forgotten, of those that were."""
        column = tables.forgotten.c
        query = select(column.digest, column.at_ms).where(column.digest.in_(sorted(digests)))
        return dict(connection.execute(query).all()) if digests else {}
