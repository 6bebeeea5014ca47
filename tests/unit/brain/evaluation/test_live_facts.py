"""From a master's document to advice: what only a running job reports reaches the advisers."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.training_facts import StepSeconds
from gangline.brain.advisers.advice import Advice, What
from gangline.brain.advisers.explain import published
from gangline.brain.advisers.memory import kills
from gangline.brain.advisers.memory import peaks as peaks_of_host
from gangline.brain.advisers.view import AdviserView, ClusterView, SimilarRuns
from gangline.brain.collection.job_digest import ContainerRun
from gangline.brain.collection.live_facts import FRESH_MS, JobObservations, digest_facts
from gangline.brain.collection.measurements import PodSample, ServerTable
from gangline.brain.evaluation.advisers import _fit, advise, build_view, with_live_facts
from gangline.brain.evaluation.cluster_facts import NodeDays, exposure_by_node
from gangline.brain.facts.records import NodeCapacity, PodRun, RecordedJob, RoleSize, Run
from unit.brain.histories import a_job

NOW = 1_795_168_800_000
MINUTE = 60_000
GIB = 2**30
WORKERS = 6
ROLE = RoleSize(role="worker", since_ms=0, replicas=WORKERS, cpu_millis=8000, gpus=1)
JOB = a_job(
    "u", submitted_ms=NOW - 3_600_000, roles=(ROLE,),
    workers_min=1, workers_max=8, workers_asked=WORKERS,
)  # fmt: skip


def segment(number: int, **changes: Any) -> dict[str, Any]:
    """Five minutes; the last segment ended just now."""
    until = NOW - (5 - number) * 5 * MINUTE
    return {
        "round": 1,
        "since": until - 5 * MINUTE,
        "until": until,
        "nodes": WORKERS,
        "procs": WORKERS,
        "steps": 300,
        "stepSeconds": {"count": 300, "mean": 1.0, "m2": 0.01},
        "microBatch": 8,
        "globalBatch": 96,
        "deviceModel": "A100",
    } | changes


def rank(number: int, compute: float, minutes: int = 6) -> dict[str, Any]:
    return {
        "name": f"train-worker-{number}",
        "rank": number,
        "deviceModel": "A100",
        "computeSeconds": [compute + 0.001 * number] * minutes,
    }


SLOW = [rank(number, 1.25 if number == 5 else 1.0) for number in range(WORKERS)]


def observed(**document: Any) -> JobObservations:
    """A job whose pod N runs on node-N, and its master's document."""
    observations = JobObservations(job=JOB)
    for number in range(WORKERS):
        observations.add_run(
            ContainerRun(
                pod=f"train-worker-{number}",
                role="worker",
                rank=number,
                node=f"node-{number}",
                started_ms=NOW - 3_500_000,
            )
        )
    digested = digest_facts(json.dumps({"v": 1, "segments": [], **document}), NOW)
    assert (digested.problem, digested.dropped) == ("", 0)
    observations.add_facts(digested)
    return observations


def view_of(
    observations: JobObservations,
    servers: ServerTable | None = None,
    job: RecordedJob | None = None,
) -> AdviserView:
    run = observations.run()
    assert run is not None
    if job is not None:
        run = msgspec.structs.replace(run, job=job)
    nodes = tuple(
        NodeCapacity(name=f"node-{number}", cpu_millis=64_000, memory_bytes=256 * GIB)
        for number in range(WORKERS)
    )
    view = build_view(run, SimilarRuns(), ClusterView(nodes=nodes), NOW)
    return with_live_facts(view, observations, servers or ServerTable(), {})


def advice_on(observations: JobObservations, what: What) -> list[Advice]:
    return [item for item in advise(view_of(observations)).advice if item.what is what]


def of_size(number: int, micro: int, used: int, **more: Any) -> dict[str, Any]:
    """A segment whose ranks used so many of 100 GiB of device memory."""
    memory = {"memoryPeak": {"A100": used * GIB}, "deviceMemory": {"A100": 100 * GIB}}
    return segment(number, microBatch=micro, **memory, **more)


def test_what_a_master_reports_reaches_all_advisers() -> None:
    """Records are waited for, memory is free, saves were measured, and one rank is slow."""
    seen = {
        "dataSeconds": 0.3,
        "loaderWorkers": 4,
        "saveSeconds": 12.0,
        "saveIntervalSeconds": 3600,
    }
    sizes = [(8, 60), (12, 75), (12, 75), (12, 75), (12, 75)]
    check = {"name": "train-worker-5", "rank": 5, "at": NOW - MINUTE, "passed": True}
    observations = observed(
        segments=[of_size(n, *size, **seen) for n, size in enumerate(sizes, 1)],
        windowsSince=NOW - 6 * MINUTE, ranks=SLOW, nodes=[check | {"factor": 1.3}],
    )  # fmt: skip
    advice = {item.what: item for item in advise(view_of(observations)).advice}
    assert (advice[What.LOADER_WORKERS].was, advice[What.LOADER_WORKERS].value) == (4, 6)
    assert (advice[What.MICRO_BATCH].was, advice[What.MICRO_BATCH].value) == (12, 16)
    assert advice[What.CHECKPOINT_INTERVAL].was == 3600
    assert advice[What.CHECKPOINT_INTERVAL].reason.arguments["save"] == 12.0
    node = advice[What.NODE]
    assert (node.target, node.rank, node.reason.code) == ("node-5", 5, "SlowRankConfirmed")


def test_minutes_of_long_ago_name_nobody() -> None:
    since = NOW - FRESH_MS - 6 * MINUTE
    assert advice_on(observed(windowsSince=since, ranks=SLOW), What.NODE) == []


def test_a_pod_whose_node_is_not_known_is_left_out() -> None:
    ranks = [rank_facts | {"name": f"other-{index}"} for index, rank_facts in enumerate(SLOW)]
    observations = observed(windowsSince=NOW - 6 * MINUTE, ranks=ranks)
    assert view_of(observations).rank_speeds == ()


def test_t2_lack_of_device_memory_goes_back_and_says_nothing_about_the_containers() -> None:
    segments = [of_size(number, 8, 60) for number in range(1, 6)]
    short = {"deviceModel": "A100", "microBatch": 16, "at": NOW + MINUTE}
    observations = observed(segments=segments, deviceShortages=[short])
    (advice,) = advice_on(observations, What.MICRO_BATCH)
    assert (advice.was, advice.value, advice.urgent) == (16, 8, True)
    assert "ran out of device memory with 16 records" in published(advice).sentence
    assert advice_on(observations, What.MEMORY) == []
    # Once a segment has ended with less, there is nothing to go back to.
    later = segment(5, round=2, since=NOW + 1, until=NOW + 5 * MINUTE, microBatch=8)
    observations = observed(segments=[*segments, later], deviceShortages=[short | {"at": NOW}])
    assert advice_on(observations, What.MICRO_BATCH) == []


def test_t2_lack_of_device_memory_is_remembered_in_the_family() -> None:
    lost = PodRun(
        role="worker", rank=0, number=0, started_ms=1, ended_ms=NOW - 60 * MINUTE,
        cause="DeviceOutOfMemory", limit_memory_bytes=8 * GIB,
    )  # fmt: skip
    sizes = [(8, 40), (12, 50), (12, 50), (12, 50)]
    observations = observed(segments=[of_size(n, *size) for n, size in enumerate(sizes, 1)])
    view = view_of(observations)
    (other,) = observed(segments=[segment(1, microBatch=16)]).run().segments  # type: ignore[union-attr]
    failed = Run(job=msgspec.structs.replace(JOB, uid="other"), segments=(other,), pods=(lost,))
    for bounds, expected in (((), [16]), ((failed,), [])):
        similar = SimilarRuns(level=1, runs=(), bounds=bounds)
        with_family = msgspec.structs.replace(view, similar=similar)
        with_family = with_live_facts(with_family, observations, ServerTable(), {})
        values = [
            item.value for item in advise(with_family).advice if item.what is What.MICRO_BATCH
        ]
        assert values == expected
    assert peaks_of_host([failed], "worker", NOW) == kills([failed], "worker", NOW) == []


def test_device_memory_of_a_known_model_need_not_be_reported() -> None:
    observations = observed(segments=[segment(5, memoryPeak={"A100-80GB": 40 * GIB})])
    (peak,) = view_of(observations).device_peaks
    assert peak.memory_bytes >= 79 * 10**9


def test_a_server_that_moved_begins_again() -> None:
    servers = ServerTable()
    sample = PodSample(GIB, 3900)
    servers.add(0, "node-0", (4000, None), sample, NOW - MINUTE)
    servers.add(0, "node-1", (8000, None), sample, NOW)
    (use,) = servers.use({0})
    assert (use.node, use.cpu_millis) == ("node-1", (3900,))


def test_documents_of_earlier_masters_have_none_of_it() -> None:
    view = view_of(observed(segments=[segment(5)]))
    assert (view.rank_speeds, view.node_checks, view.device_peaks) == ((), (), ())


@pytest.mark.parametrize(
    "ranks",
    [
        [{"name": "a", "rank": 0, "computeSeconds": [-1.0]}],
        [{"name": "a", "rank": 0, "computeSeconds": [1e300]}],
        [{"name": "", "rank": 0, "computeSeconds": [1.0]}],
        [{"name": "a", "rank": -1, "computeSeconds": [1.0]}],
        [{"name": "a", "rank": 0, "computeSeconds": [1.0] * 1000}],
        [{"name": "a", "rank": 0, "computeSeconds": "fast"}],
        [7],
    ],
    ids=str,
)
def test_impossible_minutes_are_dropped_and_counted(ranks: list[Any]) -> None:
    document = {"v": 1, "windowsSince": NOW - MINUTE, "ranks": ranks}
    facts = digest_facts(json.dumps(document), NOW)
    assert (facts.windows, facts.dropped) == ((), 1)


def failed_pods(node: str, times: Iterable[int]) -> tuple[PodRun, ...]:
    return tuple(
        PodRun(
            role="worker",
            rank=0,
            number=number,
            node=node,
            started_ms=at_ms - 3_600_000,
            ended_ms=at_ms,
            cause="NodeLost",
        )
        for number, at_ms in enumerate(times)
    )


def test_failures_of_machines_count_those_of_programs_do_not() -> None:
    broken = failed_pods("node-1", [NOW - 2 * MINUTE, NOW - 2 * MINUTE + 1])
    own = msgspec.structs.replace(broken[0], node="node-2", cause="Error")
    run = Run(job=JOB, pods=(*broken, own))
    exposures = exposure_by_node([run], NOW)
    assert {node: exposure.failures for node, exposure in exposures.items()} == {
        "node-1": 1.0,
        "node-2": 0.0,
    }
    assert exposures["node-1"].gpu_hours == pytest.approx(2.0)


def test_a_day_of_a_node_joins_all_jobs() -> None:
    days = NodeDays()
    for uid in ("a", "b", "c"):
        observations = observed(windowsSince=NOW - 6 * MINUTE, ranks=SLOW)
        view = view_of(observations)
        run = msgspec.structs.replace(view.run, job=msgspec.structs.replace(JOB, uid=uid))
        for _ in range(2):
            days.add(run, view.rank_speeds, view.node_checks, NOW)
    by_node = {record.node: record for record in days.records({"node-5": "A100"}, NOW)}
    slow = by_node["node-5"]
    assert (slow.jobs, slow.gpu_model, round(slow.score, 1)) == (3, "A100", 0.8)
    assert round(by_node["node-0"].score, 2) == 1.0


def test_own_measurements_of_a_job_come_before_those_of_its_family() -> None:
    """Twenty segments of a configuration are fitted; a family that was slower must not be all."""
    own = observed(
        segments=[
            segment(number, stepSeconds={"count": 300, "mean": 1.0}) for number in range(1, 6)
        ]
    )
    view = view_of(own)
    slow = tuple(
        msgspec.structs.replace(
            view.run.segments[0], since=NOW - 10**9 + n, step_seconds=StepSeconds(300, 3.0)
        )
        for n in range(40)
    )
    past = Run(job=msgspec.structs.replace(JOB, uid="past"), segments=slow)
    similar = SimilarRuns(level=0, runs=(past,))
    fitted = _fit(msgspec.structs.replace(view, similar=similar))
    alone = _fit(msgspec.structs.replace(view, similar=SimilarRuns(level=0, runs=())))
    assert fitted is not None
    assert alone is not None
    at = next(iter(alone.seen.configurations))
    assert alone.step_time(at) == pytest.approx(1.0, rel=0.02)
    assert fitted.step_time(at) == pytest.approx(1.0, rel=0.1)
