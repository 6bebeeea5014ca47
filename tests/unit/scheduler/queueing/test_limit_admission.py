"""Admission of gangs without pods by the limits of their queues."""

import pytest

from gangline.scheduler.queueing.limit_admission import check_queue_limit
from gangline.scheduler.queueing.messages import QUEUE_LIMIT
from gangline.scheduler.types.types import QueueInfo
from unit.scheduler.builders import cluster, decide, group, node, pod, request

LIMITED = QueueInfo("q", capability=request(cpu=4, pods=0))


@pytest.mark.parametrize(("used", "admitted"), [(0, True), (2, True), (3, False)])
def test_a_gang_without_pods_is_judged_by_its_minimal_resources(used: int, admitted: bool) -> None:
    runs = [pod(f"r{index}", group="runs", on="n1") for index in range(used)]
    new = group("new", 2, queue="q", min_resources=request(cpu=2, pods=0))
    state = cluster(node("n1"), LIMITED, group("runs", 1, queue="q"), *runs, new)
    verdict = check_queue_limit(state, new)
    assert (verdict is None) == admitted
    assert verdict is None or (verdict.reason, "'q'" in verdict.message) == (QUEUE_LIMIT, True)


def test_a_gang_that_states_no_resources_is_admitted() -> None:
    new = group("new", 2, queue="q")
    runs = [pod(f"r{index}", group="runs", on="n1") for index in range(4)]
    state = cluster(node("n1"), LIMITED, group("runs", 1, queue="q"), *runs, new)
    assert check_queue_limit(state, new) is None


@pytest.mark.parametrize(
    ("created", "admitted"),
    [
        pytest.param(0, False, id="none of its pods exists"),
        pytest.param(1, True, id="one exists and is judged by the cycle"),
        pytest.param(2, True, id="all exist"),
    ],
)
def test_only_missing_pods_are_judged(created: int, admitted: bool) -> None:
    new = group("new", 2, queue="q", min_resources=request(cpu=4, pods=0))
    runs = pod("r", group="runs", on="n1")
    waiting = [pod(f"new-{index}", cpu=2, group="new") for index in range(created)]
    state = cluster(node("n1"), LIMITED, group("runs", 1, queue="q"), runs, new, *waiting)
    assert (check_queue_limit(state, new) is None) == admitted


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(QueueInfo("q", capability=request(cpu=1, pods=0)), id="its own limit"),
        pytest.param(QueueInfo("q", parent="top"), id="the limit of its parent"),
        pytest.param(QueueInfo("q"), id="a guarantee of another queue"),
    ],
)
def test_every_limit_counts(queue: QueueInfo) -> None:
    top = QueueInfo("top", capability=request(cpu=1, pods=0))
    owner = QueueInfo("owner", guarantee=request(cpu=7, pods=0))
    new = group("new", 2, queue="q", min_resources=request(cpu=2, pods=0))
    verdict = check_queue_limit(cluster(node("n1"), queue, top, owner, new), new)
    assert verdict is not None
    assert verdict.reason == QUEUE_LIMIT


def test_a_gang_of_an_unknown_queue_has_no_limit() -> None:
    new = group("new", 2, queue="elsewhere", min_resources=request(cpu=99, pods=0))
    assert check_queue_limit(cluster(node("n1"), LIMITED, new), new) is None


def test_limit_is_judged_by_the_current_queues() -> None:
    """The structure of the queues that a cycle has cached may be outdated."""
    new = group("new", 2, queue="q", min_resources=request(cpu=2, pods=0))
    state = cluster(node("n1"), LIMITED, new, pod("any"))
    decide(state)
    assert check_queue_limit(state, new) is None
    state.queues["q"] = QueueInfo("q", capability=request(cpu=1, pods=0))
    assert check_queue_limit(state, new) is not None
