"""Victims: within a queue by priority, between queues by fair share, and no more than needed."""

import pytest

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import run_cycle as decide_with
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.types.types import (
    CycleResult,
    DisruptionBudgetInfo,
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


def evicted(decision: CycleResult) -> list[str]:
    return [each.pod.removeprefix("d/") for each in decision.evictions]


def gangs_hit(decision: CycleResult) -> dict[str, int]:
    names = [name.rpartition("-")[0] for name in evicted(decision)]
    return {name: names.count(name) for name in names}


FOUR = [node(f"n{index}", cpu=1) for index in range(4)]
ALL = "n0,n1,n2,n3"


def test_an_elastic_gang_shrinks_to_its_minimum() -> None:
    state = cluster(*FOUR, *job("low", 4, 2, on=ALL), *job("high", 2, 2, priority=9))
    assert gangs_hit(decide(state, NOW)) == {"low": 2}


def test_no_gang_is_broken_while_others_have_pods_to_spare() -> None:
    state = cluster(
        *FOUR,
        *job("a", 2, 1, on="n0,n1"),
        *job("b", 2, 1, on="n2,n3"),
        *job("high", 2, 2, priority=9),
    )
    assert gangs_hit(decide(state, NOW)) == {"a": 1, "b": 1}


def test_broken_gang_is_evicted_completely() -> None:
    state = cluster(
        *FOUR,
        *job("a", 2, 2, on="n0,n1"),
        *job("b", 2, 2, on="n2,n3"),
        *job("high", 1, 1, priority=9),
    )
    assert sum(gangs_hit(decide(state, NOW)).values()) == 2
    assert len(gangs_hit(decide(state, NOW))) == 1


def test_everything_of_lower_priority_may_go() -> None:
    state = cluster(*FOUR, *job("low", 4, 4, on=ALL), *job("high", 4, 4, priority=9))
    assert gangs_hit(decide(state, NOW)) == {"low": 4}


def test_one_large_gang_is_broken_rather_than_two_small_ones() -> None:
    state = cluster(
        *FOUR,
        *job("a", 1, 1, on="n0"),
        *job("b", 1, 1, on="n1"),
        *job("c", 2, 2, on="n2,n3"),
        *job("high", 2, 2, priority=9),
    )
    assert gangs_hit(decide(state, NOW)) == {"c": 2}


def test_gang_with_a_checkpoint_is_evicted_first() -> None:
    state = cluster(
        *FOUR,
        *job("a", 2, 2, on="n0,n1"),
        *job("b", 2, 2, on="n2,n3", checkpointed_at=NOW - 1),
        *job("high", 2, 2, priority=9),
    )
    assert gangs_hit(decide(state, NOW)) == {"b": 2}


def test_lower_priority_is_evicted_before_higher() -> None:
    state = cluster(
        *FOUR,
        *job("a", 2, 2, priority=5, on="n0,n1"),
        *job("b", 2, 2, priority=1, on="n2,n3"),
        *job("high", 2, 2, priority=9),
    )
    assert gangs_hit(decide(state, NOW)) == {"b": 2}


@pytest.mark.parametrize(
    "spared",
    [
        pytest.param({"low": {}, "high": {"priority": 0}}, id="equal priority"),
        pytest.param({"low": {"preemptable": False}, "high": {}}, id="protected pods"),
        pytest.param({"low": {"group_preemptable": False}, "high": {}}, id="a protected gang"),
        pytest.param(
            {"low": {}, "high": {"may_preempt": False}}, id="a preemptor that must not preempt"
        ),
        pytest.param({"low": {}, "high": {"is_gated": True}}, id="a gated preemptor"),
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


def test_only_permitted_pods_are_evicted() -> None:
    state = cluster(
        node("n", cpu=2),
        group("low", 1),
        pod("prm", group="low", on="n"),
        pod("not", group="low", on="n", preemptable=False),
        *job("high", 2, 1, priority=9),
    )
    assert evicted(decide(state, NOW)) == ["prm"]


def test_a_budget_protects_the_pods_that_it_covers() -> None:
    state = cluster(
        *FOUR,
        *job("a", 2, 2, on="n0,n1", labels=(("app", "a"),)),
        *job("b", 2, 2, on="n2,n3"),
        *job("high", 2, 2, priority=9),
    )
    state.budgets["d/keep"] = DisruptionBudgetInfo(
        "d/keep", "d", parse_label_selector("app=a"), allowed=1
    )
    assert gangs_hit(decide(state, NOW)) == {"b": 2}


def test_free_nodes_are_used_before_evictions() -> None:
    state = cluster(*FOUR, *job("low", 3, 1, on="n0,n1,n2"), *job("high", 2, 2, priority=9))
    assert gangs_hit(decide(state, NOW)) == {"low": 1}


def test_eviction_can_be_switched_off() -> None:
    state = cluster(*FOUR, *job("low", 4, 2, on=ALL), *job("high", 2, 2, priority=9))
    assert not decide_with(state, NOW, EvictionPolicy(preempt=False)).evictions


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


def test_a_queue_takes_back_its_share() -> None:
    state = cluster(
        *FOUR,
        queue("q1"),
        queue("q2"),
        *job("runs", 4, 1, queue="q2", on=ALL),
        *job("mine", 2, 2, queue="q1"),
    )
    assert gangs_hit(decide(state, NOW)) == {"runs": 2}


@pytest.mark.parametrize(
    ("guarantee", "evicted"),
    [
        pytest.param(0, {"runs": 4}, id="without a guarantee"),
        pytest.param(1, {}, id="guarantee of a part"),
        pytest.param(2, {}, id="guarantee of the fair share"),
    ],
)
def test_reclaim_never_breaks_a_gang_below_the_guarantee(
    guarantee: int, evicted: dict[str, int]
) -> None:
    state = cluster(
        *FOUR,
        queue("q1"),
        queue("q2", guarantee=request(cpu=guarantee, pods=0)),
        *job("runs", 4, 4, queue="q2", on=ALL),
        *job("mine", 2, 2, queue="q1"),
    )
    assert gangs_hit(decide(state, NOW)) == evicted


def test_a_queue_takes_back_no_more_than_its_share() -> None:
    state = cluster(
        *FOUR,
        queue("q1"),
        queue("q2"),
        *job("runs", 4, 1, queue="q2", on=ALL),
        *job("mine", 3, 3, queue="q1"),
    )
    assert not decide(state, NOW).evictions


@pytest.mark.parametrize(
    ("owner", "claimer"),
    [
        pytest.param({"reclaimable": False}, {}, id="a queue that is exempt"),
        pytest.param({}, {"open": False}, id="a closed queue claims nothing"),
        pytest.param(
            {"guarantee": request(cpu=4, pods=0)}, {}, id="what is guaranteed is not taken"
        ),
        pytest.param({"deserved": request(cpu=4, pods=0)}, {}, id="what is deserved is not taken"),
    ],
)
def test_a_queue_keeps(owner: dict[str, object], claimer: dict[str, object]) -> None:
    state = cluster(
        *FOUR,
        queue("q1", **claimer),
        queue("q2", **owner),
        *job("runs", 4, 1, queue="q2", on=ALL),
        *job("mine", 2, 2, queue="q1"),
    )
    assert not decide(state, NOW).evictions


def test_the_queue_of_lower_priority_gives_first() -> None:
    state = cluster(
        node("n", cpu=4),
        queue("q1", priority=5),
        queue("q2", priority=10),
        queue("q3", priority=1),
        *job("a", 2, 0, queue="q1", on="n"),
        *job("b", 2, 0, queue="q2", on="n"),
        *job("mine", 1, 1, queue="q3"),
    )
    assert gangs_hit(decide(state, NOW)) == {"a": 1}


def test_queues_below_one_queue_settle_among_themselves() -> None:
    state = cluster(
        *FOUR,
        queue("team"),
        queue("one", parent="team"),
        queue("two", parent="team"),
        queue("other"),
        *job("runs", 2, 1, queue="one", on="n0,n1"),
        *job("theirs", 2, 1, queue="other", on="n2,n3"),
        *job("mine", 1, 1, queue="two"),
    )
    assert gangs_hit(decide(state, NOW)) == {"runs": 1}


def test_evictions_are_never_mutual() -> None:
    """Run cycles over half an hour; evicted gangs are recreated immediately."""
    state = cluster(
        node("n", cpu=8),
        queue("q1", deserved=request(cpu=3, pods=0)),
        queue("q2", deserved=request(cpu=5, pods=0)),
        *job("big", 1, 1, queue="q1", cpu=4, on="n"),
        *job("half", 1, 1, queue="q2", cpu=4, on="n"),
        *job("more", 1, 1, queue="q2", cpu=1, age=1),
        *job("high", 2, 2, queue="q1", cpu=1, age=2, priority=5),
    )
    evictions = 0
    for round_ in range(200):
        decision = decide(state, NOW + 10 * round_)
        evictions += len(decision.evictions)
        carried_out(state, decision)
        for each in decision.evictions:
            gone = state.pods[each.pod]
            state.remove_pod(each.pod)
            name = each.pod.removeprefix("d/")
            cpu = dict(gone.shape.request)["cpu"] / 1000
            owner = str(gone.group).removeprefix("d/")
            state.set_pod(pod(name, cpu=cpu, group=owner, priority=gone.priority))
    assert evictions <= 2
