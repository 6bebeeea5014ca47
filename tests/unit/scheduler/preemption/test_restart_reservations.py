"""Previous nodes of a restarting gang are reserved for it."""

from datetime import UTC, datetime

import msgspec
import pytest

from gangline.api.volcano.scheduling import PREVIOUS_NODES_ANNOTATION, PodGroup
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.preemption.reservations import (
    LOST_MEMBER_RESERVATION_S,
    restart_reservations,
)
from gangline.scheduler.queueing.gangs import MAX_RESTART_RESERVATION_S
from gangline.scheduler.types.types import (
    CycleResult,
    GroupKey,
    NodeName,
    PodGroupInfo,
    PodKey,
    PreviousNodes,
)
from unit.scheduler.builders import cluster, decide, gang, group, node, pod, request

NOW = 1_000.0
SOON = NOW + 180


def restarting(until: float = SOON, size: int = 2, **places: str) -> PodGroupInfo:
    """The group ``job``, whose pods are to go back to these nodes."""
    nodes = tuple((PodKey(f"d/{name}"), NodeName(on)) for name, on in places.items())
    return group("job", size, previous_nodes=PreviousNodes(until, nodes))


def full_cluster_in_restart(until: float = SOON) -> SchedulerCache:
    """Two full nodes; the gang ``job`` has just lost both of its pods, ``other`` waits."""
    former = [pod("j0", cpu=4, group="job", on="a"), pod("j1", cpu=4, group="job", on="b")]
    state = cluster(
        node("a", cpu=4),
        node("b", cpu=4),
        restarting(until, j0="a", j1="b"),
        *former,
        *gang("other", 2, age=1, cpu=4),
    )
    for each in former:
        state.remove_pod(each.key)
    return state


def placed(decision: CycleResult) -> dict[str, str]:
    return {binding.pod.removeprefix("d/"): binding.node for binding in decision.bindings}


def test_previous_nodes_are_reserved_while_the_pods_do_not_exist() -> None:
    decision = decide(full_cluster_in_restart(), NOW)
    assert not decision.bindings
    assert "reserved for d/job" in decision.pending_reasons[0].message


def test_the_pods_go_back_to_their_nodes() -> None:
    state = full_cluster_in_restart()
    for name in ("j1", "j0"):
        state.set_pod(pod(name, cpu=4, group="job"))
    assert placed(decide(state, NOW)) == {"j0": "a", "j1": "b"}


def test_they_go_back_to_their_nodes_even_where_others_would_suit_better() -> None:
    state = cluster(
        node("a", cpu=8),
        node("b", cpu=8),
        restarting(j0="a", j1="b"),
        pod("j0", cpu=1, group="job"),
        pod("j1", cpu=1, group="job"),
    )
    assert placed(decide(state, NOW)) == {"j0": "a", "j1": "b"}


def test_half_recreated_gang_keeps_all_of_its_nodes() -> None:
    state = full_cluster_in_restart()
    state.set_pod(pod("j0", cpu=4, group="job"))
    assert not decide(state, NOW).bindings


def test_restarting_gang_is_served_first() -> None:
    state = full_cluster_in_restart()
    state.set_group(group("urgent", 1, priority=1000))
    state.set_pod(pod("u", cpu=1, group="urgent"))
    for name in ("j0", "j1"):
        state.set_pod(pod(name, cpu=4, group="job"))
    assert set(placed(decide(state, NOW))) == {"j0", "j1"}


@pytest.mark.parametrize(
    "until",
    [
        pytest.param(NOW, id="expired"),
        pytest.param(NOW + MAX_RESTART_RESERVATION_S + 1, id="longer than places are kept at all"),
    ],
)
def test_places_that_are_not_in_force_are_anybodys(until: float) -> None:
    assert len(decide(full_cluster_in_restart(until), NOW).bindings) == 2


def test_unseen_pods_are_estimated_from_the_group() -> None:
    places = PreviousNodes(SOON, ((PodKey("d/j0"), NodeName("a")), (PodKey("d/j1"), NodeName("b"))))
    state = cluster(
        node("a", cpu=4),
        node("b", cpu=4),
        group("job", 2, previous_nodes=places, min_resources=request(cpu=6, pods=2)),
        pod("small", cpu=1, age=1),
        pod("large", cpu=2, age=2),
    )
    assert set(placed(decide(state, NOW))) == {"small"}


def test_pod_that_no_longer_fits_on_its_node_is_placed_elsewhere() -> None:
    state = full_cluster_in_restart()
    state.set_node(node("b", cpu=4, unschedulable=True))
    state.set_node(node("c", cpu=4))
    for name in ("j0", "j1"):
        state.set_pod(pod(name, cpu=4, group="job"))
    assert placed(decide(state, NOW)) == {"j0": "a", "j1": "c"}


def test_places_that_would_keep_the_gang_apart_are_given_up() -> None:
    # j1 has grown: it fits on a only, where j0 was.
    state = cluster(
        node("a", cpu=4),
        node("b", cpu=2),
        restarting(j0="a", j1="b"),
        pod("j0", cpu=2, group="job"),
        pod("j1", cpu=4, group="job"),
    )
    assert placed(decide(state, NOW)) == {"j0": "b", "j1": "a"}


def test_terminating_pod_is_charged_once() -> None:
    state = cluster(
        node("a", cpu=4),
        restarting(j0="a", size=1),
        pod("j0", cpu=2, group="job", on="a", is_terminating=True),
        pod("other", cpu=2, age=1),
    )
    assert placed(decide(state, NOW)) == {"other": "a"}


def test_a_pod_that_succeeded_holds_no_place() -> None:
    state = cluster(
        node("a", cpu=2),
        restarting(j0="a", size=1),
        pod("j0", cpu=2, group="job", on="a", phase="Succeeded"),
        pod("other", cpu=2, age=1),
    )
    assert placed(decide(state, NOW)) == {"other": "a"}


def test_deleted_group_has_no_reservation() -> None:
    state = full_cluster_in_restart()
    state.remove_group(restarting().key)
    assert len(decide(state, NOW).bindings) == 2


def written(text: str, **others: str) -> PodGroupInfo:
    raw = {
        "metadata": {
            "name": "g",
            "namespace": "d",
            "annotations": {PREVIOUS_NODES_ANNOTATION: text, **others},
        }
    }
    return group_info(msgspec.convert(raw, PodGroup), {})


NOTED = '{"until": "2026-01-01T00:00:00Z", "nodes": {"j0": "%s"}}'


@pytest.mark.parametrize(
    ("text", "others"),
    [
        pytest.param(NOTED % "a", {}, id="gangline.dev/previous-nodes"),
        pytest.param("", {"gangline.dev/places": NOTED % "a"}, id="its former name"),
        pytest.param(NOTED % "a", {"gangline.dev/places": NOTED % "b"}, id="both"),
    ],
)
def test_previous_nodes_are_read_from_either_annotation(text: str, others: dict[str, str]) -> None:
    assert PREVIOUS_NODES_ANNOTATION == "gangline.dev/previous-nodes"
    until = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    expected = PreviousNodes(until, ((PodKey("d/j0"), NodeName("a")),))
    assert written(text, **others).previous_nodes == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"nodes": {}}', '{"until": "tomorrow"}', '{"until": 1, "nodes": {"a": 1}}'],
)
def test_an_annotation_that_cannot_be_read_means_nothing(text: str) -> None:
    assert written(text).previous_nodes is None


@pytest.mark.parametrize(("cpu", "binds"), [(1.0, False), (0.0, True)])
def test_pod_that_was_never_seen_gets_the_request_of_its_group(cpu: float, binds: bool) -> None:
    """A gang of one pod: its part of the group's resources is all of them."""
    there = PreviousNodes(SOON, ((PodKey("d/j0"), NodeName("a")),))
    state = cluster(
        node("a", cpu=4),
        group("job", 1, previous_nodes=there, min_resources=request(cpu=4, pods=0)),
        *gang("other", 1, age=1, cpu=cpu),
    )
    state.restarting_groups.add(GroupKey("d/job"))
    assert bool(decide(state, NOW).bindings) == binds


def test_place_of_the_member_that_was_lost_last_is_kept() -> None:
    """The gang misses one member and has lost two: the earlier one was replaced already."""
    lost = [pod(f"g-{n}", cpu=4, group="g", on=host) for n, host in ((0, "a"), (1, "b"))]
    state = cluster(
        node("a", cpu=4),
        node("b", cpu=4),
        node("c", cpu=4),
        group("g", 2),
        *lost,
        pod("g-2", cpu=4, group="g", on="c"),
    )
    for at, each in ((NOW - 9, lost[0]), (NOW - 3, lost[1])):
        state.remove_pod(each.key)
        state.record_lost_member(each, at=at, keep_s=LOST_MEMBER_RESERVATION_S)
    kept = list(restart_reservations(state, NOW))
    assert [(each.pod, each.placement.row) for each in kept] == [
        ("d/g-1", state.nodes.rows[NodeName("b")])
    ]
