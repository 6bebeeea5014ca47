"""Observations of one job: any order of events gives the same records."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brain_records import a_segment, not_none
from gangline.api.jobs.training_facts import PodFacts, SegmentFacts, TrainingFacts
from gangline.brain.collection.job_digest import ContainerRun, end_of_deleted
from gangline.brain.collection.live_facts import DigestedFacts, JobObservations, NodeSize, quantile
from gangline.brain.facts.records import Outcome, RoleSize, Run
from unit.brain.histories import a_job

SIZE = RoleSize(role="worker", since_ms=0, replicas=2, gpus=4)
JOB = a_job(
    kind="PyTorchJob", submitted_ms=0, finished_ms=900_000, outcome=Outcome.SUCCEEDED, roles=(SIZE,)
)


def run(rank: int, started_s: int, **more: Any) -> ContainerRun:
    return ContainerRun(
        pod=f"train-worker-{rank}",
        role="worker",
        rank=rank,
        node="n",
        started_ms=started_s * 1000,
        **more,
    )


def segment(round_: int, since_s: int, steps: int = 10) -> SegmentFacts:
    since = since_s * 1000
    return a_segment(round=round_, since=since, until=since + 60_000, steps=steps)


def facts(*segments: SegmentFacts, pods: tuple[PodFacts, ...] = ()) -> DigestedFacts:
    return DigestedFacts(TrainingFacts(v=1, segments=segments, pods=pods))


PEAK = PodFacts(
    name="train-worker-0", rank=0, since=11_000, until=300_000, peak_memory_bytes=5 << 30, samples=9
)
EVENTS: tuple[ContainerRun | DigestedFacts, ...] = (
    run(0, 10),
    run(0, 10, ended_ms=400_000, cause="OutOfMemory", oom=True),
    end_of_deleted(run(0, 10), 410_000),
    run(0, 420),
    run(0, 420, ended_ms=900_000),
    run(1, 10),
    run(1, 10, ended_ms=900_000),
    facts(segment(1, 20), segment(1, 80)),
    facts(segment(1, 80), segment(2, 430)),
    facts(pods=(PEAK,)),
    facts(pods=(msgspec.structs.replace(PEAK, until=390_000, peak_memory_bytes=6 << 30),)),
)


def observe(events: list[ContainerRun | DigestedFacts]) -> Run:
    seen = JobObservations()
    seen.add_job(JOB)
    for event in events:
        if isinstance(event, DigestedFacts):
            seen.add_facts(event)
        else:
            seen.add_run(event)
    run = not_none(seen.run())
    return run


EXPECTED = observe(list(EVENTS))


@given(st.permutations(EVENTS + EVENTS[::3]))
def test_any_order_of_events_gives_the_same_records(
    events: list[ContainerRun | DigestedFacts],
) -> None:
    assert observe(events) == EXPECTED


def test_runs_of_a_rank_are_numbered_and_have_what_is_known_best() -> None:
    numbers = [(pod.rank, pod.number, pod.started_ms) for pod in EXPECTED.pods]
    assert numbers == [(0, 0, 10_000), (0, 1, 420_000), (1, 0, 10_000)]
    assert EXPECTED.job.started_ms == 10_000
    first = EXPECTED.pods[0]
    assert (first.cause, first.oom, first.ended_ms) == ("OutOfMemory", True, 400_000)
    # The peak is that of the run that had started.
    assert [pod.peak_memory_bytes for pod in EXPECTED.pods] == [6 << 30, None, None]


def test_numbers_continue_those_of_an_earlier_process() -> None:
    seen = JobObservations()
    seen.add_job(JOB)
    for pod in EXPECTED.pods:
        seen.earlier[pod.role, pod.rank, pod.started_ms] = pod
    seen.add_run(run(0, 950))
    seen.add_run(run(0, 420, ended_ms=900_000))
    result = not_none(seen.run())
    assert [(pod.rank, pod.number) for pod in result.pods] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert result.pods[0] == EXPECTED.pods[0]


def test_start_of_a_waiting_job_is_not_known() -> None:
    seen = JobObservations()
    waiting = msgspec.structs.replace(
        JOB, outcome=Outcome.RUNNING, finished_ms=None, started_ms=5_000
    )
    seen.add_job(waiting)
    run = not_none(seen.run())
    assert run.job.started_ms is None


def test_quantiles_are_observed_values() -> None:
    assert quantile((), 0.5) is None
    assert quantile((1, 2, 3, 4), 0.5) == 3
    assert quantile((1, 2, 3, 4), 1.0) == 4


@pytest.mark.parametrize(
    ("limit", "node", "believed"),
    [
        pytest.param(8 << 30, "n", 6 << 30, id="within limit and node"),
        pytest.param(4 << 30, "n", None, id="above the pod's limit"),
        pytest.param(None, "small", None, id="above the node"),
        pytest.param(None, "gone", 6 << 30, id="node not known, others have it"),
    ],
)
def test_use_that_the_pod_cannot_have_had_is_not_believed(
    limit: int | None, node: str, believed: int | None
) -> None:
    """A report may claim anything, and others are advised by it."""
    sizes = {"n": NodeSize(64_000, 64 << 30), "small": NodeSize(4_000, 5 << 30)}
    seen = JobObservations(nodes=sizes)
    seen.add_job(JOB)
    seen.add_run(msgspec.structs.replace(run(0, 10), limit_memory_bytes=limit, node=node))
    claimed = msgspec.structs.replace(
        PEAK, peak_memory_bytes=6 << 30, cpu_millis_p95=5_000, cpu_millis_max=5_000
    )
    seen.add_facts(facts(pods=(claimed,)))
    result = not_none(seen.run())
    (pod,) = result.pods
    assert pod.peak_memory_bytes == believed
    assert pod.cpu_p95_millis == (None if node == "small" else 5_000)


def test_segments_of_a_clock_that_was_ahead_are_marked_once_it_is_right() -> None:
    observations = JobObservations(job=JOB)
    observations.add_facts(facts(segment(1, 0), segment(1, 100_000)))
    assert not observations.mark_future(100_000_000)
    assert observations.mark_future(60_000)
    qualities = [stored.quality for _, stored in sorted(observations.segments.items())]
    assert qualities == ["good", "disturbed"]
    assert not observations.mark_future(60_000)
