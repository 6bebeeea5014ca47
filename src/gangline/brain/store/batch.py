"""What the history is made of: facts as they are buffered and written."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

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
    segments = {(each.round, each.since_ms): each for each in before.segments}
    for segment in run.segments:
        if segments.get((segment.round, segment.since_ms)) != segment:
            yield SegmentFact(run.job.cluster, run.job.uid, segment)
    pods = {(each.role, each.rank, each.number): each for each in before.pods}
    for pod in run.pods:
        if pods.get((pod.role, pod.rank, pod.number)) != pod:
            yield PodFact(run.job.cluster, run.job.uid, pod)


def batches(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    """Split facts so that each batch changes at most ``MAX_ROWS`` rows, jobs first."""
    batch: list[Fact] = []
    rows = 0
    for fact in sorted(facts, key=lambda fact: not isinstance(fact, Job)):
        weight = _rows(fact)
        if batch and rows + weight > MAX_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(fact)
        rows += weight
    if batch:
        yield batch


def _rows(fact: Fact) -> int:
    # A job has a family, an image and perhaps a model.
    return 4 + len(fact.roles) if isinstance(fact, Job) else 1
