"""Facts as they are buffered and written: bounded, and merged by what they are about."""

import threading
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from gangline.brain.facts.merge import (
    merge_jobs,
    merge_node_speeds,
    merge_pod_runs,
    merge_segments,
)
from gangline.brain.facts.records import Job, NodeSpeed, PodRun, Run, Segment

MAX_ROWS: Final = 500
"""Of one transaction: a longer one would make readers and other writers wait."""


class SegmentFact(msgspec.Struct, frozen=True):
    """A segment of the job with this UID."""

    cluster: str
    uid: str
    segment: Segment


class PodFact(msgspec.Struct, frozen=True):
    """A pod run of the job with this UID."""

    cluster: str
    uid: str
    pod: PodRun


class SpeedFact(msgspec.Struct, frozen=True):
    """A day of a node of this cluster."""

    cluster: str
    speed: NodeSpeed


Fact: TypeAlias = Job | SegmentFact | PodFact | SpeedFact
FactKey: TypeAlias = tuple[str | int, ...]


def fact_key(fact: Fact) -> FactKey:
    """Identify the row that a fact is about."""
    match fact:
        case Job():
            return ("job", fact.cluster, fact.uid)
        case SegmentFact(cluster, uid, segment):
            return ("segment", cluster, uid, segment.round, segment.since_ms)
        case PodFact(cluster, uid, pod):
            return ("pod", cluster, uid, pod.role, pod.rank, pod.number)
        case SpeedFact(cluster, speed):
            return ("speed", cluster, speed.node, speed.day)


def facts_of(run: Run) -> Iterator[Fact]:
    """Take a run apart."""
    yield run.job
    for segment in run.segments:
        yield SegmentFact(run.job.cluster, run.job.uid, segment)
    for pod in run.pods:
        yield PodFact(run.job.cluster, run.job.uid, pod)


def changed_facts(before: Run, run: Run) -> Iterator[Fact]:
    """Take a run apart, without what an earlier state of it had."""
    if run.job != before.job:
        yield run.job
    segments = {
        (segment_before.round, segment_before.since_ms): segment_before
        for segment_before in before.segments
    }
    for segment in run.segments:
        if segments.get((segment.round, segment.since_ms)) != segment:
            yield SegmentFact(run.job.cluster, run.job.uid, segment)
    pods = {
        (pod_before.role, pod_before.rank, pod_before.number): pod_before
        for pod_before in before.pods
    }
    for pod in run.pods:
        if pods.get((pod.role, pod.rank, pod.number)) != pod:
            yield PodFact(run.job.cluster, run.job.uid, pod)


def batches(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    """Split facts into batches of at most ``MAX_ROWS`` rows, one for each fact, jobs first."""
    ordered = sorted(facts, key=lambda fact: not isinstance(fact, Job))
    for first in range(0, len(ordered), MAX_ROWS):
        yield ordered[first : first + MAX_ROWS]


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
