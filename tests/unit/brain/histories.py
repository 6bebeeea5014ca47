"""Builders of histories: jobs, their runs and what their ranks used."""

from collections.abc import Sequence

import msgspec

import brain_records
from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.advisers.advice import Advice, What
from gangline.brain.advisers.explain import published
from gangline.brain.advisers.view import AdviserView, ClusterView, SimilarRuns
from gangline.brain.facts.records import (
    Image,
    MemorySample,
    NodeCapacity,
    Outcome,
    PodRun,
    RecordedJob,
    RoleSize,
    Run,
)

GIB = 1 << 30
MIB = 1 << 20
HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 20_780 * DAY
"""22 November 2026."""


def a_job(uid: str = "new", **changes: object) -> RecordedJob:
    names = {"cluster": "c1", "uid": uid, "namespace": "team", "name": f"train-resnet-{uid}"}
    unknown = {"queue": "", "spec_digest": "", "started_ms": None, "model": None, "observed_ms": 0}
    image = Image(repository="registry/train")
    own = {"command_digest": "cmd", "submitted_ms": NOW - HOUR, "roles": (asking(32),)}
    return brain_records.a_running_job(**(names | unknown | own | {"image": image} | changes))


def asking(memory_gib: float | None, cpu_millis: int | None = None, replicas: int = 4) -> RoleSize:
    return RoleSize(
        role="worker",
        since_ms=0,
        replicas=replicas,
        memory_bytes=None if memory_gib is None else round(memory_gib * GIB),
        cpu_millis=cpu_millis,
    )


def a_pod(peak_gib: float | None, rank: int = 0, **changes: object) -> PodRun:
    peak = None if peak_gib is None else round(peak_gib * GIB)
    measured = {"limit_memory_bytes": 32 * GIB, "peak_memory_bytes": peak, "cpu_p95_millis": None}
    times = {"started_ms": NOW - DAY, "ended_ms": NOW - DAY + HOUR, "node": "", "samples": 0}
    return brain_records.a_pod(rank, **(measured | times | changes))


def an_oom(limit_gib: float, rank: int = 0, number: int = 0, **changes: object) -> PodRun:
    limit = round(limit_gib * GIB)
    killed = {"number": number, "oom": True, "cause": "OOMKilled", "limit_memory_bytes": limit}
    return a_pod(limit_gib, rank, **(killed | changes))


def a_run(
    uid: str,
    pods: Sequence[PodRun] = (),
    *,
    days_ago: float = 1.0,
    segments: Sequence[SegmentFacts] = (),
    **changes: object,
) -> Run:
    """A complete successful run that ended some days ago, with its pods."""
    ended = NOW - round(days_ago * DAY)
    values: dict[str, object] = {
        "outcome": Outcome.SUCCEEDED,
        "complete": True,
        "started_ms": ended - HOUR,
        "finished_ms": ended,
        **changes,
    }
    moved = [msgspec.structs.replace(pod, started_ms=ended - HOUR, ended_ms=ended) for pod in pods]
    return Run(job=a_job(uid, **values), pods=tuple(moved), segments=tuple(segments))


def peaks_of(uid: str, *gib: float, days_ago: float = 1.0, **changes: object) -> Run:
    """A run with one peak for each rank."""
    pods = [a_pod(amount, rank) for rank, amount in enumerate(gib)]
    return a_run(uid, pods, days_ago=days_ago, **changes)


def a_view(
    runs: Sequence[Run] = (),
    *,
    level: int = 1,
    job: RecordedJob | None = None,
    own: Run | None = None,
    bounds: Sequence[Run] = (),
    largest_gib: float | None = None,
    memory: Sequence[MemorySample] = (),
    remaining_s: float | None = None,
    price: float = 0.0,
) -> AdviserView:
    nodes: tuple[NodeCapacity, ...] = ()
    if largest_gib is not None:
        amount = round(largest_gib * GIB)
        nodes = (NodeCapacity(name="big", memory_bytes=amount, cpu_millis=64_000),)
    return AdviserView(
        now_ms=NOW,
        run=own or Run(job=job or a_job()),
        similar=SimilarRuns(level=level, runs=tuple(runs), bounds=tuple(bounds)),
        cluster=ClusterView(nodes=nodes, price=price),
        memory_samples=tuple(memory),
        remaining_s=remaining_s,
    )


def the(advice: Sequence[Advice], what: What, rank: int | None = None) -> Advice:
    """The only advice on one subject."""
    matching = [item for item in advice if item.what is what and item.rank == rank]
    assert len(matching) == 1, [item.reason.code for item in advice]
    return matching[0]


def codes(advice: Sequence[Advice]) -> list[str]:
    return sorted(item.reason.code for item in advice)


def checked(advice: Advice) -> Advice:
    """The advice, whose sentence shows each number and argument as JSON does."""
    shown = published(advice)
    assert published(shown.advice) == shown
    assert set(shown.advice.reason.arguments) == set(advice.reason.arguments)
    return advice
