"""Metrics of pending gangs and queues: what is counted, in which units, and what is left out."""

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.metrics import gang_size_class
from gangline.scheduler.reporting.queue_status import SchedulerQueueMetrics, SchedulerSnapshot
from gangline.scheduler.types import QueueInfo
from unit.scheduler.builders import GIB, GPU, cluster, decide, gang, group, node, pod


def exported(state: SchedulerCache, now: float) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each metric by label values."""
    metrics = SchedulerQueueMetrics(lambda: now)
    with metrics.exported(lambda: SchedulerSnapshot(state, decide(state, now).pending_reasons)):
        found = {
            family.name.removeprefix("gangline_scheduler_"): {
                tuple(sample.labels.values()): sample.value for sample in family.samples
            }
            for family in metrics.collect()
        }
    assert not any(family.samples for family in metrics.collect())  # a standby exports nothing
    return found


@pytest.fixture
def crowded() -> SchedulerCache:
    """One node of 8 GPUs: 6 are used by research, which deserves 4; three gangs are pending."""
    research = QueueInfo("research", deserved=((GPU, 4),), capability=(("cpu", 16000),))
    return cluster(
        node("n1", cpu=32, memory=64, gpu=8),
        research,
        group("running", 1, queue="research"),
        pod("running-0", cpu=4, memory=8, gpu=6, group="running", on="n1"),
        *gang("old", 2, age=100, gpu=2),
        *gang("young", 1, age=400, gpu=4),
        group("partial", 3, age=300, queue="research"),
        pod("partial-0", group="partial", age=300),
        pod("single", cpu=1.5, gpu=8, age=200),
    )


def test_pending_gangs_are_counted_by_queue_and_reason(crowded: SchedulerCache) -> None:
    found = exported(crowded, 1000.0)
    assert found["pending_gangs"] == {
        ("default", "NotEnoughResources"): 3,
        ("research", "NotEnoughTasks"): 1,
    }
    assert found["oldest_pending_gang_seconds"] == {
        ("default", "NotEnoughResources"): 900.0,
        ("research", "NotEnoughTasks"): 700.0,
    }
    assert found["oldest_pending_gang_request"] == {
        ("default", "cpu"): 2.0,
        ("default", GPU): 4.0,
    }
    assert found["pending_request"] == {
        ("default", "cpu"): 2 + 1 + 1.5,
        ("default", GPU): 4 + 4 + 8,
        ("research", "cpu"): 1.0,
    }


def test_queues_export_what_they_deserve_use_and_borrow(crowded: SchedulerCache) -> None:
    found = exported(crowded, 1000.0)
    assert found["queue_deserved"]["research", GPU] == 4
    assert found["queue_allocated"]["research", GPU] == 6
    assert found["queue_borrowed"]["research", GPU] == 2
    assert found["queue_borrowed"]["default", GPU] == 0
    assert found["queue_allocated"]["research", "cpu"] == 4.0
    assert found["queue_allocated"]["research", "memory"] == 8 * GIB
    assert found["queue_limit"]["research", "cpu"] == 16.0
    assert ("research", GPU) not in found["queue_limit"]
    assert found["capacity"]["cpu",] == 32.0
    assert found["free"][GPU,] == 2.0


def test_gangs_that_are_placed_after_the_cycle_are_not_counted(crowded: SchedulerCache) -> None:
    reasons = decide(crowded, 1000.0).pending_reasons
    for name in ("old-worker-0", "old-worker-1", "single"):
        crowded.remove_pod(f"d/{name}")  # type: ignore[arg-type]
    metrics = SchedulerQueueMetrics(lambda: 1000.0)
    with metrics.exported(lambda: SchedulerSnapshot(crowded, reasons)):
        (counts,) = [each for each in metrics.collect() if each.name.endswith("pending_gangs")]
    assert {tuple(s.labels.values()): s.value for s in counts.samples} == {
        ("default", "NotEnoughResources"): 1,
        ("research", "NotEnoughTasks"): 1,
    }


@pytest.mark.parametrize(
    ("pods", "label"),
    [(1, "1"), (2, "2-8"), (8, "2-8"), (9, "9-64"), (512, "65-512"), (5000, "4097-")],
)
def test_sizes_of_gangs_have_few_labels(pods: int, label: str) -> None:
    assert gang_size_class(pods) == label
