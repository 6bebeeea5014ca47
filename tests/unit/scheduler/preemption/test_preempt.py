"""Victims: within a queue by priority, between queues by fair share, and no more than needed."""

import pytest
from msgspec.structs import replace

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.preemption.preempt import (
    ANY_PRIORITY,
    NO_PRIORITY,
    EvictablePlainPods,
    EvictionPolicy,
    PreemptionEvaluator,
)
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types import (
    NodeName,
    PodInfo,
    QueueInfo,
)
from unit.scheduler.builders import cluster, decide, group, node, pod, request

NOW = 10_000.0


def test_an_eviction_that_is_refused_is_taken_back() -> None:
    state = cluster(node("n", cpu=1), pod("low", on="n"), pod("high", priority=9))
    first = decide(state, NOW)
    state.reservations = dict(first.reservations)
    (eviction,) = first.evictions
    state.evict(eviction.pod, eviction.uid)
    state.undo_eviction(eviction.pod, eviction.uid)
    assert [again.pod for again in decide(state, NOW + 1).evictions] == ["d/low"]


def evaluator(state: SchedulerCache, policy: EvictionPolicy | None = None) -> PreemptionEvaluator:
    tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
    return PreemptionEvaluator(state, tree, policy or EvictionPolicy(), NOW, lambda _: False)


def only_pending(state: SchedulerCache) -> PendingGang:
    (found,), _ = pending_gangs(state, NOW)
    return found


@pytest.mark.parametrize("ends", [True, False])
def test_reservation_fits_its_queue_once_the_ending_pods_of_the_queue_have_ended(
    ends: bool,
) -> None:
    state = cluster(
        node("n", cpu=8),
        QueueInfo("q", capability=request(cpu=4, pods=0)),
        group("old", 1, queue="q"),
        pod("old-0", cpu=4, group="old", on="n", is_terminating=ends),
        group("new", 1, queue="q"),
        pod("new-0", cpu=4, group="new"),
    )
    waits = only_pending(state)
    row, demand = state.nodes.rows[NodeName("n")], state.nodes.demand(request(cpu=4))
    placements = [Placement(waits.pending, row, demand)]
    scratch = ScratchAllocation(state.nodes)
    assert evaluator(state).still_fits(scratch, waits, placements) is ends


@pytest.mark.parametrize("owed", [True, False])
def test_gang_waits_for_ending_pods_by_a_reservation_only_if_it_may_evict(owed: bool) -> None:
    """Else any gang would hold resources that others of its rank are waiting for, too."""
    deserved = request(cpu=2, pods=0) if owed else request(cpu=8, pods=0)
    state = cluster(
        node("n0", cpu=4),
        node("n1", cpu=4),
        QueueInfo("a", deserved=request(cpu=6, pods=0)),
        QueueInfo("b", deserved=deserved),
        group("runs", 1, queue="b"),
        pod("runs-0", cpu=4, group="runs", on="n0"),
        group("ends", 1, queue="b"),
        pod("ends-0", cpu=4, group="ends", on="n1", is_terminating=True),
        group("wants", 1, queue="a"),
        pod("wants-0", cpu=4, group="wants"),
    )
    found = evaluator(state).find_victims(ScratchAllocation(state.nodes), only_pending(state))
    assert (found is not None) is owed
    if found is not None:
        assert found.victims == ()
        assert [each.row for each in found.placements] == [state.nodes.rows[NodeName("n1")]]


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
