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
    CycleResult,
    NodeName,
    PodGroupInfo,
    PodInfo,
    QueueInfo,
)
from unit.scheduler.builders import cluster, decide, group, node, pod, request

Facts = PodGroupInfo | PodInfo
NOW = 10_000.0


def job(
    name: str,
    size: int,
    minimum: int,
    priority: int = 0,
    queue: str = "default",
    on: str | None = None,
    age: int = 0,
    **facts: object,
) -> list[Facts]:
    """Make a gang; ``on`` gives the nodes of its pods in turn, comma-separated."""
    nodes = on.split(",") if on else [None]  # type: ignore[list-item]
    of_group = {key: facts.pop(key) for key in ("checkpointed_at",) if key in facts}
    of_group["preemptable"] = facts.pop("group_preemptable", True)
    members = [
        pod(
            f"{name}-{index}",
            group=name,
            age=age,
            priority=priority,
            on=nodes[index % len(nodes)],
            **facts,  # type: ignore[arg-type]
        )
        for index in range(size)
    ]
    return [group(name, minimum, age, priority=priority, queue=queue, **of_group), *members]


FOUR = [node(f"n{index}", cpu=1) for index in range(4)]
ALL = "n0,n1,n2,n3"


@pytest.mark.parametrize(
    "spared",
    [
        pytest.param({"low": {"group_preemptable": False}, "high": {}}, id="a protected gang"),
        pytest.param({"low": {}, "high": {"cpu": 2}}, id="a preemptor that would not fit"),
        pytest.param(
            {"low": {"is_ours": False}, "high": {"priority": 0}}, id="pods of other schedulers"
        ),
        pytest.param(
            {"low": {"priority": 2 * 10**9}, "high": {"priority": 2**31 - 1}}, id="system"
        ),
    ],
)
def test_exempt_pods_and_preemptors_cause_no_eviction(spared: dict[str, dict[str, object]]) -> None:
    high = {"priority": 9} | spared["high"]
    state = cluster(*FOUR, *job("low", 4, 4, on=ALL, **spared["low"]), *job("high", 2, 2, **high))  # type: ignore[arg-type]
    assert not decide(state, NOW).evictions


def carried_out(state: SchedulerCache, decision: CycleResult, now: float = NOW) -> None:
    """Do what was decided, as far as the cluster's state shows it at once."""
    state.reservations = dict(decision.reservations)
    for binding in decision.bindings:
        state.assume(binding.pod, binding.node)
    for eviction in decision.evictions:
        state.evict(eviction.pod, eviction.uid)


def test_freed_resources_are_reserved_for_the_preemptor() -> None:
    state = cluster(*FOUR, *job("low", 4, 4, on=ALL), *job("high", 4, 4, priority=9))
    carried_out(state, decide(state, NOW))
    again = decide(state, NOW + 1)
    assert not again.evictions
    assert [reserved.preempting for reserved in again.reservations.values()] == [True]
    assert again.pending_reasons[0].reason == "NotEnoughResources"
    for index in range(4):
        state.remove_pod(pod(f"low-{index}").key)
        if index < 3:
            state.set_pod(pod(f"low-{index}", group="low"))
            state.set_pod(pod(f"small{index}", priority=0))
            assert not decide(state, NOW + 2).bindings
    decision = decide(state, NOW + 3)
    assert {each.pod for each in decision.bindings} == {f"d/high-{i}" for i in range(4)}


def test_an_eviction_that_is_refused_is_taken_back() -> None:
    state = cluster(*FOUR, *job("low", 4, 4, on=ALL), *job("high", 4, 4, priority=9))
    first = decide(state, NOW)
    carried_out(state, first)
    for eviction in first.evictions:
        state.undo_eviction(eviction.pod, eviction.uid)
    assert len(decide(state, NOW + 1).evictions) == 4


def queue(name: str, **facts: object) -> QueueInfo:
    return QueueInfo(name, **facts)  # type: ignore[arg-type]


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
