"""Which pods without a gang a gang may count on, because preemption could evict them."""

import pytest
from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.plain_pods import (
    ANY_PRIORITY,
    NO_PRIORITY,
    EvictablePlainPods,
)
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import PodInfo, QueueInfo
from unit.scheduler.builders import cluster, group, node, pod, request

CPU_4 = request(cpu=4, pods=0)
MEMORY_8 = request(memory=8, pods=0)


def bound(
    *queues: QueueInfo,
    policy: EvictionPolicy | None = None,
    plain: dict[str, object] | None = None,
    **wants: object,
) -> float:
    """Return the bound of a gang of queue ``q`` beside plain pods that fill a node."""
    filling = {"cpu": 8, "memory": 8, **(plain or {})}
    facts: dict[str, object] = {"cpu": 2, "queue": "q", "priority": 3, **wants}
    queue, priority = facts.pop("queue"), facts.pop("priority")
    state = cluster(
        node("n", cpu=8, memory=16),
        *queues,
        pod("plain", on="n", **filling),  # type: ignore[arg-type]
        group("job", 1, queue=queue, priority=priority),
        pod("job-0", group="job", **facts),  # type: ignore[arg-type]
    )
    (pending,), _ = pending_gangs(state, 0.0)
    return plain_pods(state, policy or EvictionPolicy()).priority_bound(pending)


def plain_pods(state: SchedulerCache, policy: EvictionPolicy) -> EvictablePlainPods:
    tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
    return EvictablePlainPods(state, tree, policy)


OWED = QueueInfo("q", deserved=CPU_4)


@pytest.mark.parametrize(
    ("queues", "facts", "expected"),
    [
        pytest.param((), {"queue": "default"}, 3, id="of its queue: those of lower priority"),
        pytest.param((OWED,), {}, ANY_PRIORITY, id="its queue is owed processors"),
        pytest.param((OWED,), {"cpu": 5}, NO_PRIORITY, id="beyond the share of its queue"),
        pytest.param((OWED,), {"may_preempt": False}, NO_PRIORITY, id="it never preempts"),
        pytest.param((OWED,), {"plain": {"belongs_to_job": True}}, NO_PRIORITY, id="none lasts"),
        pytest.param(
            (OWED, QueueInfo("default", reclaimable=False)), {}, NO_PRIORITY, id="not reclaimable"
        ),
        pytest.param(
            (OWED, QueueInfo("default", deserved=CPU_4)),
            {"plain": {"cpu": 4}},
            NO_PRIORITY,
            id="the other queue is within its share",
        ),
        pytest.param(
            (
                QueueInfo("q", deserved=(*CPU_4, *MEMORY_8)),
                QueueInfo("default", deserved=(*CPU_4, *MEMORY_8)),
            ),
            {"plain": {"cpu": 4, "memory": 9}, "cpu": 2},
            NO_PRIORITY,
            id="the other queue exceeds its share of something else",
        ),
        pytest.param(
            (QueueInfo("top", deserved=CPU_4), QueueInfo("q", parent="top", deserved=CPU_4)),
            {},
            ANY_PRIORITY,
            id="below a queue that is owed processors",
        ),
        pytest.param(
            (
                QueueInfo("top"),
                QueueInfo("default", parent="top"),
                QueueInfo("q", parent="top", deserved=CPU_4),
            ),
            {},
            ANY_PRIORITY,
            id="both below a queue that is within its share",
        ),
    ],
)
def test_bound_follows_from_priorities_and_shares(
    queues: tuple[QueueInfo, ...], facts: dict[str, object], expected: float
) -> None:
    assert bound(*queues, **facts) == expected  # type: ignore[arg-type]


def test_policy_decides_whether_plain_pods_are_evicted() -> None:
    assert bound(queue="default", policy=EvictionPolicy(preempt=False)) == NO_PRIORITY
    assert bound(OWED, policy=EvictionPolicy(reclaim=False)) == NO_PRIORITY


def test_only_evictable_pods_below_the_bound_count() -> None:
    def lasting(name: str, **facts: object) -> PodInfo:
        return pod(name, on="n", **facts)  # type: ignore[arg-type]

    state = cluster(
        node("n", cpu=64),
        lasting("low", priority=1),
        lasting("equal", priority=3),
        lasting("protected", priority=1, preemptable=False),
        lasting("foreign", priority=1, is_ours=False),
    )
    found = plain_pods(state, EvictionPolicy())
    assert [each.key for each in found.below(3)] == ["d/low"]
    assert {each.key for each in found.below(ANY_PRIORITY)} == {"d/low", "d/equal"}
    assert list(found.below(NO_PRIORITY)) == []


def test_one_device_that_a_queue_is_owed_is_counted() -> None:
    state = cluster(
        node("n", gpu=4),
        QueueInfo("q", deserved=request(gpu=2, pods=0)),
        pod("plain", cpu=0, gpu=4, on="n"),
        group("job", 1, queue="q"),
        pod("job-0", cpu=0, gpu=1, group="job"),
    )
    (pending,), _ = pending_gangs(state, 0.0)
    pending = replace(pending, requested=request(gpu=1, pods=0))
    assert plain_pods(state, EvictionPolicy()).priority_bound(pending) == ANY_PRIORITY
