"""What preemption keeps of running gangs between cycles: a cycle after a change decides as a
scheduler that has just started.
"""

from collections.abc import Callable

import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types.types import GroupKey, NodeName, PodKey
from unit.scheduler.builders import checked_cycle, cluster, gang, group, node, pod

NOW = 10_000.0


def world() -> SchedulerCache:
    """Two full nodes, and a gang that may evict ``cheap`` or ``dear``; ``cheap`` has lost less."""
    state = cluster(
        node("n0", cpu=2),
        node("n1", cpu=2),
        group("cheap", 2),
        *(pod(f"cheap-{n}", group="cheap", on="n0", started_at=NOW - 10) for n in range(2)),
        group("dear", 2),
        *(pod(f"dear-{n}", group="dear", on="n1", started_at=NOW - 90) for n in range(2)),
        *gang("claims", 2),
    )
    state.set_group(group("claims", 2, priority=5))
    return state


def evicted(state: SchedulerCache) -> set[str]:
    return {str(each.group).removeprefix("d/") for each in checked_cycle(state, NOW).evictions}


def change_priority(state: SchedulerCache) -> None:
    state.set_group(group("cheap", 2, priority=9))


def change_checkpoint(state: SchedulerCache) -> None:
    state.set_group(group("dear", 2, checkpointed_at=NOW - 1))


def remove_group(state: SchedulerCache) -> None:
    state.remove_group(GroupKey("d/cheap"))


def restart(state: SchedulerCache) -> None:
    for n in range(2):
        state.set_pod(pod(f"dear-{n}", group="dear", on="n1", started_at=NOW - 1))


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
    decision = checked_cycle(state, NOW)
    assert [each.pod for each in decision.evictions] == ["d/same"]


def test_pod_without_group_may_evict_the_gang_of_its_name() -> None:
    state = cluster(
        node("n0", cpu=1),
        group("same", 1),
        pod("same-0", group="same", on="n0"),
        pod("same", priority=5),
    )
    decision = checked_cycle(state, NOW)
    assert [each.pod for each in decision.evictions] == ["d/same-0"]


def test_pending_pod_and_gang_of_one_name_have_reservations_of_their_own() -> None:
    state = cluster(
        node("n0", cpu=1),
        node("n1", cpu=1),
        *(pod(f"low-{n}", on=f"n{n}") for n in range(2)),
        pod("same", priority=5),
        group("same", 1, priority=5),
        pod("same-0", group="same", priority=5),
    )
    decision = checked_cycle(state, NOW)
    reserved = [reservation.nodes for reservation in decision.reservations.values()]
    assert sorted(nodes[0][0] for nodes in reserved) == ["d/same", "d/same-0"]
    assert {node for nodes in reserved for _, node in nodes} == {"n0", "n1"}
    assert len({each.beneficiary for each in decision.evictions}) == 2
