"""Facts as they are buffered and written: bounded, and merged by what they are about."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gangline.brain.facts.merge import merge
from gangline.brain.facts.records import Record, RecordedJob, Run

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
