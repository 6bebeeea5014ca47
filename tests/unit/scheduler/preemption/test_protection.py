"""Protected run time: a started gang is not evicted for a while."""

import pytest
from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.protection import ProtectedGangs
from gangline.scheduler.types.quota_scopes import QuotaAttributes
from gangline.scheduler.types.types import QueueInfo
from unit.scheduler.builders import checked_cycle, cluster, group, node, pod, request

STARTED, PROTECTED_S = 1000.0, 300.0
DURING, AFTER = STARTED + PROTECTED_S - 1, STARTED + PROTECTED_S


def low_and_high(queue: QueueInfo, **running: object) -> SchedulerCache:
    facts = {"group": "low", "on": "n1", "cpu": 2, "started_at": STARTED, **running}
    return cluster(
        node("n1", cpu=2),
        queue,
        group("low", 1, queue=queue.name, priority_class="low"),
        pod("low-0", **facts),  # type: ignore[arg-type]
        group("high", 1, queue=queue.name, priority=9),
        pod("high-0", cpu=2, group="high"),
    )


def evicted(state: SchedulerCache, now: float) -> list[str]:
    return [str(each.pod) for each in checked_cycle(state, now).evictions]


def test_a_queue_protects_its_started_gangs_for_a_while() -> None:
    queue = QueueInfo("q", protected_s=PROTECTED_S)
    assert evicted(low_and_high(queue), DURING) == []
    assert evicted(low_and_high(queue), AFTER) == ["d/low-0"]


def test_a_queue_has_the_protection_of_its_nearest_ancestor() -> None:
    state = low_and_high(QueueInfo("q", parent="team"))
    state.queues["team"] = QueueInfo("team", protected_s=PROTECTED_S)
    assert evicted(state, DURING) == []
    state.queues["q"] = QueueInfo("q", parent="team", protected_s=PROTECTED_S / 2)
    assert evicted(state, DURING) == ["d/low-0"]


@pytest.mark.parametrize(("name", "protects"), [("low", True), ("other", False)])
def test_a_priority_class_protects_its_gangs(name: str, protects: bool) -> None:
    state = low_and_high(QueueInfo("q"))
    state.class_protection[name] = PROTECTED_S
    assert (evicted(state, DURING) == []) == protects
    assert evicted(state, AFTER) == ["d/low-0"]


def test_a_priority_class_protects_pods_without_a_gang() -> None:
    single = pod("alone", cpu=2, on="n1", started_at=STARTED)
    single = replace(single, quota_attributes=QuotaAttributes(priority_class="low"))
    state = cluster(node("n1", cpu=2), single, pod("high", cpu=2, priority=9))
    state.class_protection["low"] = PROTECTED_S
    assert evicted(state, DURING) == []
    assert evicted(state, AFTER) == ["d/alone"]


def test_the_longer_protection_counts() -> None:
    state = low_and_high(QueueInfo("q", protected_s=10.0))
    state.class_protection["low"] = PROTECTED_S
    assert evicted(state, DURING) == []


def test_another_queue_reclaims_nothing_from_a_protected_gang() -> None:
    state = low_and_high(QueueInfo("q", protected_s=PROTECTED_S))
    state.queues["owed"] = QueueInfo("owed", deserved=request(cpu=2, pods=0))
    state.queues["q"] = QueueInfo("q", protected_s=PROTECTED_S, deserved=request(cpu=1, pods=0))
    state.remove_pod(pod("high-0").key)
    state.set_group(group("claim", 1, queue="owed"))
    state.set_pod(pod("claim-0", cpu=1, group="claim"))
    assert evicted(state, DURING) == []
    assert evicted(state, AFTER) == ["d/low-0"]


def test_a_bound_gang_that_has_not_started_is_protected() -> None:
    queue = QueueInfo("q", protected_s=PROTECTED_S)
    assert evicted(low_and_high(queue, started_at=0.0), AFTER) == []


def test_the_next_end_is_that_of_the_first_protected_gang() -> None:
    state = low_and_high(QueueInfo("q", protected_s=PROTECTED_S))
    assert ProtectedGangs(state, DURING).next_end() == AFTER
    assert ProtectedGangs(state, AFTER).next_end() is None
    assert ProtectedGangs(low_and_high(QueueInfo("q")), DURING).next_end() is None


@pytest.mark.parametrize("parent", ["", "team"])
def test_gang_without_protection_may_be_evicted_from_its_start(parent: str) -> None:
    state = low_and_high(QueueInfo("q", parent=parent))
    if parent:
        state.queues[parent] = QueueInfo(parent)
    assert evicted(state, STARTED) == ["d/low-0"]
    state.class_protection["other"] = PROTECTED_S
    assert evicted(state, STARTED) == ["d/low-0"]


def test_gang_of_a_queue_that_does_not_exist_has_no_protection() -> None:
    state = low_and_high(QueueInfo("q"), started_at=DURING - 0.5)
    state.class_protection["other"] = PROTECTED_S
    del state.queues["q"]
    assert ProtectedGangs(state, DURING).next_end() is None
