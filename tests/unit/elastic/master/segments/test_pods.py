"""Memory and processors of pods."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.training_facts import PodFacts
from gangline.elastic.master.segments.pods import PodTable, PodUsage
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
