"""Trial placement of further pods of a running gang."""

from gangline.scheduler.reporting.growth import try_growth
from gangline.scheduler.types import GroupKey, PodInfo, QueueInfo
from unit.scheduler.builders import cluster, group, node, pod

JOB = GroupKey("d/job")


def workers(*, cpu: int) -> list[PodInfo]:
    return [pod(f"job-{n}", cpu=cpu, group="job", on="a", role="worker") for n in range(2)]


def test_processors_of_real_nodes_limit_the_growth() -> None:
    """The nodes have free devices for all: what they lack is CPU."""
    state = cluster(node("a", cpu=4), node("b", cpu=4), group("job", 2), *workers(cpu=2))
    growth = try_growth(state, JOB, "worker", 4, 0.0)
    assert growth.pods == 2
    assert "Insufficient cpu" in growth.why


def test_limit_of_the_queue_limits_the_growth() -> None:
    state = cluster(node("a", cpu=4), node("b", cpu=40), group("job", 2), *workers(cpu=2))
    limited = QueueInfo("default", capability=(("cpu", 6000),))
    state.queues["default"] = limited
    growth = try_growth(state, JOB, "worker", 4, 0.0)
    assert growth.pods == 1
    assert growth.why


def test_cordoned_nodes_take_nothing() -> None:
    cordoned = node("b", cpu=40, unschedulable=True)
    state = cluster(node("a", cpu=4), cordoned, group("job", 2), *workers(cpu=2))
    assert try_growth(state, JOB, "worker", 1, 0.0).pods == 0


def test_all_pods_fit_on_free_nodes() -> None:
    state = cluster(node("a", cpu=4), node("b", cpu=40), group("job", 2), *workers(cpu=2))
    assert try_growth(state, JOB, "worker", 4, 0.0) == (4, "")
