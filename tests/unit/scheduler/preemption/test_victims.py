"""Running gangs as candidates: which of their pods may go alone, and what their end costs."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.victims import (
    EvictionCost,
    EvictionUnit,
    ProtectedGangs,
    RunningGang,
    eviction_units,
    is_evictable,
    pods_to_evict,
    total_cost,
    without_overlap,
)
from gangline.scheduler.queueing.gangs import split_into_subgroups
from gangline.scheduler.types import (
    GroupKey,
    NodeName,
    PodInfo,
    PodKey,
    QueueInfo,
    QuotaAttributes,
    SubgroupRule,
)
from unit.scheduler.builders import checked_cycle, cluster, gang, group, node, pod, request

NOW = 1000.0


def running(*pods: PodInfo, minimum: int = 0, **facts: object) -> RunningGang:
    info = group("g", minimum, **facts)
    subgroups = split_into_subgroups(info.subgroups, pods, ())
    return RunningGang("d/g", "default", 3, pods, info, subgroups)


def members(count: int, **facts: object) -> list[PodInfo]:
    return [pod(f"g-{n}", group="g", on="n", age=n, **facts) for n in range(count)]  # type: ignore[arg-type]


def names(parts: tuple[tuple[PodInfo, ...], ...]) -> list[str]:
    return ["+".join(pod.key.removeprefix("d/g-") for pod in part) for part in parts]


def rule(name: str, minimum: int) -> SubgroupRule:
    """Pairs of pods whose label of this name has one value."""
    return SubgroupRule(name, Selector((Requirement(name, "exists"),)), 2, minimum, (name,))


def pairs(label: str, count: int, first: int = 0, **facts: object) -> list[PodInfo]:
    return [
        pod(f"g-{n}", group="g", on="n", labels=((label, str(n // 2)),), **facts)  # type: ignore[arg-type]
        for n in range(first, first + 2 * count)
    ]


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        pytest.param(running(*members(3), minimum=3), [], id="at its minimum"),
        pytest.param(running(*members(3), minimum=2), ["2", "1", "0"], id="the newest first"),
        pytest.param(
            running(pod("g-0", group="g", priority=1), *members(3, priority=2)[1:], minimum=1),
            ["0", "2", "1"],
            id="the lowest priority first",
        ),
        pytest.param(
            running(
                pod("g-0", group="g", role="ps"),
                pod("g-1", group="g", role="w"),
                pod("g-2", group="g", role="w"),
                minimum=1,
                min_task_member=(("ps", 1), ("w", 1)),
            ),
            ["1", "2"],
            id="not of a role at its minimum",
        ),
        pytest.param(
            running(pod("g-0", role="one"), *members(3)[1:], minimum=2),
            ["2", "1", "0"],
            id="the only pod of a role without a minimum",
        ),
        pytest.param(
            running(pod("g-0", preemptable=False), *members(3)[1:], minimum=1),
            ["2", "1"],
            id="not protected ones",
        ),
        pytest.param(
            running(*pairs("a", 2), pod("g-x"), minimum=1, subgroups=(rule("a", 1),)),
            ["0+1", "2+3", "x"],
            id="complete subgroups, and pods of none",
        ),
        pytest.param(
            running(*pairs("a", 2), minimum=1, subgroups=(rule("a", 2),)),
            [],
            id="no subgroup that must run",
        ),
        pytest.param(
            running(*pairs("a", 2), minimum=3, subgroups=(rule("a", 1),)),
            [],
            id="no subgroup below the minimum",
        ),
        pytest.param(
            running(
                *pairs("a", 1), *pairs("b", 2, 2), minimum=1, subgroups=(rule("a", 1), rule("b", 1))
            ),
            ["2+3", "4+5"],
            id="subgroups of a rule that has more than it needs",
        ),
        pytest.param(
            running(
                *pairs("a", 1, preemptable=False),
                *pairs("a", 1, 2),
                minimum=1,
                subgroups=(rule("a", 1),),
            ),
            ["2+3"],
            id="no protected subgroup",
        ),
    ],
)
def test_spare_pods_are_those_that_the_gang_can_run_without(
    gang: RunningGang, expected: list[str]
) -> None:
    assert names(gang.spare_parts) == expected


def test_pod_without_a_gang_has_no_spare_pods() -> None:
    assert RunningGang("d/p", "default", 0, (pod("p"),), None).spare_parts == ()


@pytest.mark.parametrize(
    ("lost", "spared"),
    [((1,), True), ((1, 2), False), ((0,), False), ((), True)],
)
def test_gang_keeps_its_minimum_of_pods_and_of_each_role(
    lost: tuple[int, ...], spared: bool
) -> None:
    pods = [pod("g-0", role="ps"), *members(3, role="w")[1:]]
    gang = running(*pods, minimum=2, min_task_member=(("ps", 1),))
    assert gang.can_spare([pods[n] for n in lost]) == spared


def test_gang_keeps_the_minimum_of_its_subgroups() -> None:
    pods = [*pairs("a", 3), *pairs("b", 1, 6)]
    gang = running(*pods, minimum=2, subgroups=(rule("a", 1), rule("b", 2)))
    assert gang.can_spare(pods[:2])
    assert gang.can_spare(pods[:4])
    assert not gang.can_spare(pods[:6])
    assert not gang.can_spare((pods[0], pods[2], pods[4]))
    assert not gang.can_spare(pods[6:])


def test_lost_work_counts_from_the_start_or_the_last_checkpoint() -> None:
    pods = (pod("g-0", started_at=NOW - 100), pod("g-1", age=int(NOW) - 40))
    assert running(*pods).lost_work(NOW) == 140
    assert running(*pods, checkpointed_at=NOW - 60).lost_work(NOW) == 100
    assert running(*pods, checkpointed_at=NOW + 60).lost_work(NOW) == 0
    assert RunningGang("d/p", "q", 0, pods, None).lost_work(NOW) == 140


def test_units_are_the_spare_pods_and_the_complete_gang() -> None:
    gang = running(*members(3, started_at=NOW - 10), minimum=2)
    *spare, complete = eviction_units(gang, 7, NOW)
    assert [unit.pods for unit in spare] == list(gang.spare_parts)
    assert all(unit.cost == EvictionCost(shrunk_tier=(7, 3), pods=1) for unit in spare)
    assert not any(unit.breaks_gang for unit in spare)
    assert complete.breaks_gang
    assert complete.pods == gang.pods
    assert complete.cost == EvictionCost((7, 3), 1, (), 30.0, 3)


@pytest.mark.parametrize(
    ("gang", "broken"),
    [
        pytest.param(running(*members(2), minimum=0), False, id="without a minimum"),
        pytest.param(running(*members(2), minimum=1), True, id="with a minimum"),
        pytest.param(
            running(*members(1), pod("g-1", preemptable=False), minimum=2), False, id="protected"
        ),
        pytest.param(
            RunningGang("d/p", "q", 0, (pod("p"),), None), True, id="a pod without a gang"
        ),
    ],
)
def test_gang_is_broken_only_if_it_has_a_minimum_and_all_pods_may_go(
    gang: RunningGang, broken: bool
) -> None:
    assert any(unit.breaks_gang for unit in eviction_units(gang, 0, NOW)) == broken


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        (EvictionCost(pods=9), EvictionCost((0, 0), 1)),
        (EvictionCost((0, 5), 3), EvictionCost((1, 0), 1)),
        (EvictionCost((0, 0), 3), EvictionCost((0, 1), 1)),
        (EvictionCost((0, 0), 1, (), 99.0), EvictionCost((0, 0), 2, (), 1.0)),
        (EvictionCost(shrunk_tier=(0, 1), pods=9), EvictionCost(shrunk_tier=(0, 2), pods=1)),
        (EvictionCost((0, 0), 1, (), 1.0, 9), EvictionCost((0, 0), 1, (), 2.0, 1)),
        (EvictionCost((0, 0), 1, (), 1.0, 1), EvictionCost((0, 0), 1, (), 1.0, 2)),
    ],
)
def test_order_of_costs(cheaper: EvictionCost, dearer: EvictionCost) -> None:
    assert cheaper < dearer


def test_cost_of_a_set_is_the_highest_tier_and_the_sum_of_the_rest() -> None:
    first = EvictionCost((0, 4), 1, (0, 9), 2.0, 3)
    second = EvictionCost((1, 2), 2, (0, 8), 5.0, 7)
    assert first.plus(second) == second.plus(first) == EvictionCost((1, 2), 3, (0, 9), 7.0, 10)
    gang = running(*members(2), minimum=1)
    units = [EvictionUnit(gang, (), True, cost) for cost in (first, second)]
    assert total_cost(units) == first.plus(second)


def test_complete_gang_includes_its_spare_pods() -> None:
    gang = running(*members(3), minimum=2)
    *spare, complete = eviction_units(gang, 0, NOW)
    other = RunningGang("d/o", "q", 0, (pod("o"),), None)
    alone = eviction_units(other, 0, NOW)
    assert without_overlap([*spare, *alone]) == [*spare, *alone]
    assert without_overlap([*spare, complete, *alone]) == [complete, *alone]
    listed = pods_to_evict([*alone, spare[0], complete])
    assert [each.key for each in listed] == ["d/g-0", "d/g-1", "d/g-2", "d/o"]


@pytest.mark.parametrize(
    ("facts", "evictable"),
    [
        pytest.param({}, True, id="an ordinary one"),
        pytest.param({"priority": 2 * 10**9 - 1}, True, id="high priority"),
        pytest.param({"priority": 2 * 10**9}, False, id="a priority of the system"),
        pytest.param({"is_ours": False}, False, id="of another scheduler"),
        pytest.param({"is_ours": False, "group": "g"}, True, id="of a gang in any case"),
    ],
)
def test_system_pods_and_foreign_pods_are_not_evictable(
    facts: dict[str, object], evictable: bool
) -> None:
    assert is_evictable(pod("p", **facts)) == evictable  # type: ignore[arg-type]


def test_pods_of_the_system_namespace_are_not_evictable() -> None:
    assert not is_evictable(replace(pod("p"), key=PodKey("kube-system/p")))


FIRST_CYCLE = 10_000.0


def world() -> SchedulerCache:
    """Two full nodes, and a gang that may evict ``cheap`` or ``dear``; ``cheap`` has lost less."""
    state = cluster(
        node("n0", cpu=2),
        node("n1", cpu=2),
        group("cheap", 2),
        *(pod(f"cheap-{n}", group="cheap", on="n0", started_at=FIRST_CYCLE - 10) for n in range(2)),
        group("dear", 2),
        *(pod(f"dear-{n}", group="dear", on="n1", started_at=FIRST_CYCLE - 90) for n in range(2)),
        *gang("claims", 2),
    )
    state.set_group(group("claims", 2, priority=5))
    return state


def evicted(state: SchedulerCache) -> set[str]:
    return {
        str(each.group).removeprefix("d/") for each in checked_cycle(state, FIRST_CYCLE).evictions
    }


def change_priority(state: SchedulerCache) -> None:
    state.set_group(group("cheap", 2, priority=9))


def change_checkpoint(state: SchedulerCache) -> None:
    state.set_group(group("dear", 2, checkpointed_at=FIRST_CYCLE - 1))


def remove_group(state: SchedulerCache) -> None:
    state.remove_group(GroupKey("d/cheap"))


def restart(state: SchedulerCache) -> None:
    for n in range(2):
        state.set_pod(pod(f"dear-{n}", group="dear", on="n1", started_at=FIRST_CYCLE - 1))


def end(state: SchedulerCache) -> None:
    for n in range(2):
        state.evict(PodKey(f"d/cheap-{n}"), f"uid-cheap-{n}")


def undo_end(state: SchedulerCache) -> None:
    end(state)
    evicted(state)
    for n in range(2):
        state.undo_eviction(PodKey(f"d/cheap-{n}"), f"uid-cheap-{n}")


def finish(state: SchedulerCache) -> None:
    for n in range(2):
        state.remove_pod(PodKey(f"d/cheap-{n}"))


def remove_node(state: SchedulerCache) -> None:
    state.remove_node(NodeName("n0"))


def replace_rows(state: SchedulerCache) -> None:
    """The rows of the two nodes are exchanged."""
    for name in ("n0", "n1"):
        state.remove_node(NodeName(name))
    for name in ("n0", "n1"):
        state.set_node(node(name, cpu=2))


def add_node_again(state: SchedulerCache) -> None:
    state.remove_node(NodeName("n0"))
    evicted(state)
    state.set_node(node("n0", cpu=2))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(change_priority, {"dear"}, id="a group's priority"),
        pytest.param(change_checkpoint, {"dear"}, id="a group's checkpoint"),
        pytest.param(remove_group, {"dear"}, id="a group that is deleted"),
        pytest.param(restart, {"dear"}, id="the start of its pods"),
        pytest.param(end, set(), id="pods that end"),
        pytest.param(undo_end, {"cheap"}, id="pods that do not end after all"),
        pytest.param(finish, set(), id="pods that have ended"),
        pytest.param(remove_node, {"dear"}, id="a node that is removed"),
        pytest.param(replace_rows, {"cheap"}, id="nodes that change their rows"),
        pytest.param(add_node_again, {"cheap"}, id="a node that comes back"),
    ],
)
def test_a_cycle_after_a_change_decides_as_the_first_one(
    change: Callable[[SchedulerCache], None], expected: set[str]
) -> None:
    state = world()
    assert evicted(state) == {"cheap"}
    change(state)
    fresh = world()
    change(fresh)
    assert evicted(state) == evicted(fresh) == expected


SAME_NAME = [
    node("n0", cpu=1),
    node("n1", cpu=1),
    pod("same", on="n0"),
    group("same", 1, priority=9),
    pod("same-0", group="same", on="n1", priority=9),
]


@pytest.mark.parametrize("group_is_first", [False, True])
def test_pod_without_group_is_evicted_without_the_gang_of_its_name(group_is_first: bool) -> None:
    things = [*SAME_NAME[:2], *SAME_NAME[3:], SAME_NAME[2]] if group_is_first else SAME_NAME
    state = cluster(*things, pod("claims", priority=5))
    decision = checked_cycle(state, FIRST_CYCLE)
    assert [each.pod for each in decision.evictions] == ["d/same"]


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


def evictions(state: SchedulerCache, now: float) -> list[str]:
    return [str(each.pod) for each in checked_cycle(state, now).evictions]


@pytest.mark.parametrize(
    ("queue", "classes", "facts", "during", "after"),
    [
        pytest.param({"protected_s": PROTECTED_S}, {}, {}, True, False, id="queue"),
        pytest.param({"parent": "team"}, {}, {}, True, False, id="ancestor"),
        pytest.param({"parent": "team", "protected_s": 9.0}, {}, {}, False, False, id="own first"),
        pytest.param({}, {"low": PROTECTED_S}, {}, True, False, id="priority class"),
        pytest.param({}, {"other": PROTECTED_S}, {}, False, False, id="another class"),
        pytest.param(
            {"protected_s": 9.0}, {"low": PROTECTED_S}, {}, True, False, id="the longer of both"
        ),
        pytest.param(
            {"protected_s": PROTECTED_S}, {}, {"started_at": 0.0}, True, True, id="not started"
        ),
    ],
)
def test_started_gangs_are_protected_for_a_while(
    queue: dict[str, object],
    classes: dict[str, float],
    facts: dict[str, object],
    during: bool,
    after: bool,
) -> None:
    state = low_and_high(QueueInfo("q", **queue), **facts)
    state.queues["team"] = QueueInfo("team", protected_s=PROTECTED_S)
    state.class_protection |= classes
    assert evictions(state, DURING) == ([] if during else ["d/low-0"])
    assert evictions(state, AFTER) == ([] if after else ["d/low-0"])


def test_a_priority_class_protects_pods_without_a_gang() -> None:
    single = pod("alone", cpu=2, on="n1", started_at=STARTED)
    single = replace(single, quota_attributes=QuotaAttributes(priority_class="low"))
    state = cluster(node("n1", cpu=2), single, pod("high", cpu=2, priority=9))
    state.class_protection["low"] = PROTECTED_S
    assert evictions(state, DURING) == []
    assert evictions(state, AFTER) == ["d/alone"]


def test_another_queue_reclaims_nothing_from_a_protected_gang() -> None:
    state = low_and_high(QueueInfo("q", protected_s=PROTECTED_S))
    state.queues["owed"] = QueueInfo("owed", deserved=request(cpu=2, pods=0))
    state.queues["q"] = QueueInfo("q", protected_s=PROTECTED_S, deserved=request(cpu=1, pods=0))
    state.remove_pod(pod("high-0").key)
    state.set_group(group("claim", 1, queue="owed"))
    state.set_pod(pod("claim-0", cpu=1, group="claim"))
    assert evictions(state, DURING) == []
    assert evictions(state, AFTER) == ["d/low-0"]


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
    assert evictions(state, STARTED) == ["d/low-0"]
    state.class_protection["other"] = PROTECTED_S
    assert evictions(state, STARTED) == ["d/low-0"]


def test_gang_of_a_queue_that_does_not_exist_has_no_protection() -> None:
    state = low_and_high(QueueInfo("q"), started_at=DURING - 0.5)
    state.class_protection["other"] = PROTECTED_S
    del state.queues["q"]
    assert ProtectedGangs(state, DURING).next_end() is None
