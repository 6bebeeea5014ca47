"""What segments hold of pods: peaks, percentiles, and windows of ranks."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.training_facts import (
    FACTS_MAX_BYTES,
    NodeFacts,
    PodFacts,
    RankFacts,
    RestartFacts,
    SegmentFacts,
    SlowestNode,
    StepSeconds,
    TrainingFacts,
)
from gangline.elastic.master.segments.document import FactsContent, ReportedJob, encode_facts
from gangline.elastic.master.segments.pods import PodTable, PodUsage
from gangline.elastic.master.segments.windows import MAX_RANKS, WINDOWS, WindowTable, select_ranks
from gangline.elastic.protocol.messages import Heartbeat, NodeReport, NodeResources


def beat(cpus: float, peak: int | None = None, pod: str = "pod-3") -> Heartbeat:
    return Heartbeat(
        node_id=3,
        resources=NodeResources(cpus, 5),
        node=NodeReport(pod=pod, memory_peak_bytes=peak),
    )


def test_peaks_and_minutes_are_those_of_the_pod() -> None:
    table = PodTable()
    for second in range(180):
        cpus = 4.0 if second < 60 else 1.0
        table.observe(beat(cpus, 100 + second % 50), 2, float(second), second * 1000)
    (pod,) = table.facts()
    assert (pod.name, pod.rank, pod.since, pod.until) == ("pod-3", 2, 0, 179_000)
    assert (pod.peak_memory_bytes, pod.cpu_millis_max, pod.samples) == (149, 4000, 2)
    assert pod.cpu_millis_p50 is not None
    assert 1000 <= pod.cpu_millis_p50 <= 1050


def test_short_run_counts_before_its_first_minute_is_over() -> None:
    table = PodTable()
    table.observe(beat(2.0), 0, 0.0, 0)
    table.observe(beat(3.0), 0, 1.0, 1000)
    (pod,) = table.facts()
    assert (pod.cpu_millis_max, pod.samples, pod.peak_memory_bytes) == (2500, 1, None)


def test_pod_without_a_name_or_samples_has_no_facts() -> None:
    table = PodTable()
    table.observe(Heartbeat(node_id=1, resources=NodeResources(1.0, 1)), 0, 0.0, 0)
    assert table.facts() == []
    table.observe(Heartbeat(node_id=1, node=NodeReport(pod="p")), 0, 0.0, 0)
    assert table.facts() == [PodFacts("p", 0, 0, 0)]


def test_new_master_continues_the_peaks_of_the_earlier_one() -> None:
    earlier = PodFacts("pod-3", 2, 10, 20, 900, 1, 2, 3, 50)
    gone = PodFacts("pod-1", 1, 1, 2, 7)
    table = PodTable([earlier, gone])
    table.observe(beat(2.0, 500), 2, 0.0, 1000)
    assert table.facts() == [gone, PodFacts("pod-3", 2, 10, 1000, 900, 1, 2, 3, 50)]


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=200))
def test_percentiles_are_ordered_and_within_a_bucket(means: list[float]) -> None:
    usage = PodUsage("p", 0, 0, 0)
    for minute, cpus in enumerate(means):
        usage.add_cpus(cpus, minute * 60.0)
    usage.add_cpus(0.0, len(means) * 60.0)
    facts = usage.facts()
    assert facts.samples == len(means)
    p50, p95, most = facts.cpu_millis_p50, facts.cpu_millis_p95, facts.cpu_millis_max
    assert p50 is not None
    assert p95 is not None
    assert most is not None
    assert p50 <= p95 <= most
    exact = sorted(means)[math.ceil(len(means) * 0.95) - 1] * 1000
    assert min(exact - 1, most) <= p95 <= max(exact * 1.05, 1) + 1


NAMES = st.text(max_size=253)
COUNTS = st.integers(0, 1 << 62)


def segment(number: int, name: str = "p" * 63) -> SegmentFacts:
    return SegmentFacts(
        round=number, since=1_700_000_000_000 + number, until=1_700_000_300_000, nodes=1000,
        procs=8000, steps=600, step_seconds=StepSeconds(600, 0.512345, 0.00123456),
        quality="disturbed", devices_per_node=8, device_model="NVIDIA H100 80GB HBM3",
        micro_batch=8, accumulation=4, global_batch=256_000, step_first=100, step_last=700,
        compute_seconds=0.412345, sync_seconds=0.0812345, data_seconds=0.00212345,
        slowest=SlowestNode(name, 17, 0.551234, 1.23456), grad_sqr=1.23456e-05, grad_var=98.7654,
        memory_peak={"NVIDIA H100 80GB HBM3": 71_000_000_000},
        restarts=RestartFacts(1, {"restarting": 12.34, "checkpoint": 1.23, "lost": 4.56}),
    )  # fmt: skip


def pod(number: int, peak: int | None, name: str = "") -> PodFacts:
    return PodFacts(
        name or f"train-edljob-worker-{number}", number, 0, 1, peak, 900, 1000, 1100, 60
    )


@given(
    st.lists(NAMES, max_size=25),
    st.lists(st.tuples(NAMES, COUNTS), max_size=60),
    st.lists(st.tuples(NAMES, st.floats(0, 1e6)), max_size=60),
    NAMES,
)
def test_size_is_bounded_and_the_latest_segment_survives(
    segments: list[str],
    pods: list[tuple[str, int]],
    nodes: list[tuple[str, float]],
    name: str,
) -> None:
    content = FactsContent(
        segments=[segment(number, slowest) for number, slowest in enumerate(segments)],
        pods=[pod(number, peak, name) for number, (name, peak) in enumerate(pods)],
        nodes=[NodeFacts(name, 0, 1, True, factor) for name, factor in nodes],
    )
    written = encode_facts(ReportedJob(name, name, name), content)
    assert len(written) <= FACTS_MAX_BYTES
    facts = msgspec.json.decode(written, type=TrainingFacts)
    assert (facts.v, facts.pods_total) == (1, len(pods))
    if segments:
        assert facts.segments[-1] == content.segments[-1]
        kept = [*content.segments][-len(facts.segments) :]
        assert [*facts.segments] == kept, "they are the latest ones, in order"


def test_job_of_a_thousand_pods_keeps_its_segments_rank_0_and_the_highest_peaks() -> None:
    content = FactsContent(
        segments=[segment(number) for number in range(30)],
        pods=[pod(number, 10_000 + number if number % 7 else None) for number in range(1000)],
    )
    written = encode_facts(ReportedJob("train", "team", "uid"), content)
    facts = msgspec.json.decode(written, type=TrainingFacts)
    assert len(written) <= FACTS_MAX_BYTES
    assert [segment.round for segment in facts.segments] == list(range(10, 30))
    assert facts.pods[0].rank == 0
    assert facts.pods[1].rank == 999
    assert facts.pods_total == 1000


WALL_MS = 1_700_000_000_000


def train(table: WindowTable, minutes: int, nodes: int = 4, round_: int = 1) -> None:
    """A report every ten seconds; node 3 computes longer in each minute."""
    for tenth in range(minutes * 6):
        for node in range(nodes):
            compute = 1.3 if node == 3 else 1.0
            report = NodeReport(
                pod=f"pod-{node}", compute_s=compute, sync_s=1.5 - compute, device_model="A100"
            )
            table.observe(round_, node, node, report, 5, tenth * 10.0)


def test_complete_minutes_are_published_without_the_first() -> None:
    table = WindowTable()
    train(table, minutes=4)
    windows = table.facts(3 * 60.0 + 30.0, WALL_MS)
    assert windows.since_ms == WALL_MS - 150_000
    assert [rank.name for rank in windows.ranks] == ["pod-0", "pod-1", "pod-2", "pod-3"]
    assert [rank.compute_seconds for rank in windows.ranks] == [(1.0, 1.0)] * 3 + [(1.3, 1.3)]
    assert windows.ranks[3].sync_seconds == (0.2, 0.2)
    assert windows.ranks[3].device_model == "A100"


def test_only_the_last_minutes_are_kept() -> None:
    table = WindowTable()
    train(table, minutes=20)
    windows = table.facts(19 * 60.0 + 1.0, WALL_MS)
    assert len(windows.ranks[0].compute_seconds) == WINDOWS


def test_another_world_begins_anew_and_one_node_has_nothing_to_compare_with() -> None:
    table = WindowTable()
    train(table, minutes=4)
    train(table, minutes=4, nodes=1, round_=2)
    assert table.facts(200.0, WALL_MS).ranks == ()


def test_a_node_that_was_silent_for_a_minute_has_a_gap() -> None:
    table = WindowTable()
    report = NodeReport(pod="a", compute_s=1.0)
    for minute in range(4):
        table.observe(1, 0, 0, report, 5, minute * 60.0)
        if minute != 2:
            table.observe(1, 1, 1, report, 5, minute * 60.0)
    windows = table.facts(239.0, WALL_MS)
    assert windows.ranks[1].compute_seconds == (1.0, None)
    assert windows.ranks[1].sync_seconds == ()


def test_large_jobs_keep_the_slowest_and_an_even_selection() -> None:
    ranks = [
        RankFacts(
            name=str(rank),
            rank=rank,
            compute_seconds=(1.0 + (rank == 700) + rank * 1e-6,),
            sync_seconds=(0.5 - 0.4 * (rank == 300),),
        )
        for rank in range(1000)
    ]
    chosen = select_ranks(ranks)
    assert len(chosen) == MAX_RANKS
    assert {300, 700} <= {rank.rank for rank in chosen}
    middle = sorted(rank.compute_seconds[0] or 0 for rank in chosen)[MAX_RANKS // 2]
    assert abs(middle - 1.0005) < 0.0003
    assert {300, 700} <= {rank.rank for rank in select_ranks(chosen, 8)}
