"""Running gangs as candidates: which of their pods may go alone, and what their end costs."""

import pytest
from msgspec.structs import replace

from gangline.api.meta.selectors import Requirement, Selector
from gangline.scheduler.preemption.victim_sets import (
    EvictionCost,
    EvictionUnit,
    RunningGang,
    eviction_units,
    is_evictable,
    pods_to_evict,
    total_cost,
    without_overlap,
)
from gangline.scheduler.queueing.subgroups import split_into_subgroups
from gangline.scheduler.types.types import PodInfo, PodKey, SubgroupRule
from unit.scheduler.builders import group, pod

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
