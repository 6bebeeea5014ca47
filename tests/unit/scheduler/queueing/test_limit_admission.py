"""Admission of gangs without pods by the limits of their queues."""

import pytest

from gangline.scheduler.queueing.limit_admission import check_queue_limit
from gangline.scheduler.queueing.messages import QUEUE_LIMIT
from gangline.scheduler.types.types import QueueInfo
from unit.scheduler.builders import cluster, group, node, pod, request

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
