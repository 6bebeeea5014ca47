"""Facts that wait to be written: bounded, and merged by what they are about."""

import threading
from collections.abc import Iterable
from typing import Final

from gangline.brain.facts.merge import (
    merge_jobs,
    merge_node_speeds,
    merge_pod_runs,
    merge_segments,
)
from gangline.brain.facts.records import Job
from gangline.brain.store.batch import Fact, FactKey, PodFact, SegmentFact, SpeedFact, fact_key

MAX_FACTS: Final = 10_000


class FactBuffer:
    """Facts by what they are about: a second observation of one thing is merged with the first.

    Any thread may use it. ``dropped`` counts facts that were lost because it was full: the oldest
    ones that are no jobs, since without its job no fact can be stored.
    """

    def __init__(self, capacity: int = MAX_FACTS) -> None:
        self.capacity = capacity
        self._facts: dict[FactKey, Fact] = {}
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._facts)

    def put(self, facts: Iterable[Fact]) -> None:
        """Add facts; never blocks for longer than another thread needs to do the same."""
        with self._lock:
            for fact in facts:
                key = fact_key(fact)
                before = self._facts.get(key)
                self._facts[key] = fact if before is None else _merge(before, fact)
            while len(self._facts) > self.capacity:
                del self._facts[self._oldest()]
                self.dropped += 1

    def take(self, limit: int) -> list[Fact]:
        """Return the oldest facts, jobs first; they stay until ``discard``."""
        with self._lock:
            jobs = [fact for fact in self._facts.values() if isinstance(fact, Job)]
            others = (fact for fact in self._facts.values() if not isinstance(fact, Job))
            return [*jobs, *others][:limit]

    def discard(self, facts: Iterable[Fact]) -> None:
        """Remove facts that were written, unless a later observation has replaced them."""
        with self._lock:
            for fact in facts:
                key = fact_key(fact)
                if self._facts.get(key) is fact:
                    del self._facts[key]

    def _oldest(self) -> FactKey:
        others = (key for key, fact in self._facts.items() if not isinstance(fact, Job))
        return next(others, next(iter(self._facts)))


def _merge(one: Fact, other: Fact) -> Fact:
    match one, other:
        case Job(), Job():
            return merge_jobs(one, other)
        case SegmentFact(), SegmentFact():
            segment = merge_segments(one.segment, other.segment)
            return SegmentFact(one.cluster, one.uid, segment)
        case PodFact(), PodFact():
            return PodFact(one.cluster, one.uid, merge_pod_runs(one.pod, other.pod))
        case SpeedFact(), SpeedFact():
            return SpeedFact(one.cluster, merge_node_speeds(one.speed, other.speed))
        case _:
            return other
