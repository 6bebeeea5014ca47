"""The search for gangs that packing cannot place: bounds, and all pods or none."""

import pytest

from gangline.api.meta.selectors import parse_label_selector
from gangline.scheduler.placement import gang as backtracking
from gangline.scheduler.placement.gang import place_by_backtracking, place_minimum
from gangline.scheduler.placement.reservation_planner import ReservationPlanner
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.queueing.gangs import PendingGang, pending_gangs
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    InterPodRules,
    NodeInfo,
    PlacementConstraints,
    PodInfo,
    PodTerm,
)
from unit.scheduler.builders import ANYWHERE, checked_cycle, cluster, gang, group, node, pod

FITS = ((3, 1), (1, 3), (2, 2), (2, 2))
"""CPU and memory of pods that fill two nodes of four each, in one way only."""


def search(
    *pods: tuple[int, int], nodes: int = 2, minimum: int | None = None
) -> tuple[bool, list[tuple[str, int]]]:
    """Return whether the pods were placed, and each placed pod with its row."""
    state = cluster(
        *(node(f"n{number}", cpu=4, memory=4) for number in range(nodes)),
        group("g", len(pods) if minimum is None else minimum),
        *(
            pod(f"g-{number}", cpu=cpu, memory=memory, group="g")
            for number, (cpu, memory) in enumerate(pods)
        ),
    )
    (gang,), _ = pending_gangs(state, 0.0)
    scratch = ScratchAllocation(state.nodes)
    placed = place_by_backtracking(scratch, gang, gang.pending)
    assert (scratch.free >= 0).all()
    return placed, [
        (each.key, placement.row) for placement in scratch.since(0) for each in placement.pods
    ]


def test_the_only_way_to_place_all_pods_is_found() -> None:
    placed, where = search(*FITS)
    rows = dict(where)
    assert placed
    assert len(rows) == len(FITS)
    assert rows["d/g-0"] == rows["d/g-1"]
    assert rows["d/g-2"] == rows["d/g-3"]


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param((*FITS, (1, 0)), id="too much in total"),
        pytest.param(((3, 3), (3, 3), (1, 2)), id="enough in total, and none fits"),
        pytest.param(((5, 1), (1, 1)), id="a pod that no node takes"),
        pytest.param(((1, 1),), id="one pod: packing is enough"),
        pytest.param(((2, 2), (2, 2)), id="one kind: packing is enough"),
    ],
)
def test_none_is_placed_if_not_all_are(pods: tuple[tuple[int, int], ...]) -> None:
    assert search(*pods) == (False, [])


def test_extra_pods_are_not_searched() -> None:
    assert search(*FITS, minimum=3) == (False, [])


def test_more_pods_or_nodes_than_the_bounds_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backtracking, "MAX_PODS", 4)
    assert search(*FITS)[0]
    monkeypatch.setattr(backtracking, "MAX_PODS", 3)
    assert not search(*FITS)[0]
    monkeypatch.undo()
    monkeypatch.setattr(backtracking, "MAX_NODES", 2)
    assert search(*FITS)[0]
    assert not search(*FITS, nodes=3)[0]


def test_number_of_tried_placements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "MAX_STEPS", len(FITS) - 1)
    assert search(*FITS) == (False, [])


@pytest.mark.parametrize("pods", [((2, 1), (1, 2)), ((1, 1), (2, 2), (1, 1))])
def test_two_pods_and_pods_of_mixed_kinds_are_placed(pods: tuple[tuple[int, int], ...]) -> None:
    placed, where = search(*pods, nodes=1)
    assert placed
    assert len(where) == len(pods)


AWAY_FROM_WEB = PlacementConstraints(
    inter_pod=InterPodRules(anti_affinity=(PodTerm(parse_label_selector("app=web"), "name"),))
)


@pytest.mark.parametrize("rules", [ANYWHERE, AWAY_FROM_WEB], ids=["no rules", "rules"])
def test_best_node_of_each_kind_is_tried(rules: PlacementConstraints) -> None:
    """Each pod fits on one node only, which is the best one for it."""
    state = cluster(
        node("n0", cpu=4, memory=4, labels={"name": "n0"}),
        node("n1", cpu=2, memory=6, labels={"name": "n1"}),
        group("g", 2),
        pod("g-0", cpu=3, memory=1, group="g", constraints=rules),
        pod("g-1", cpu=1, memory=5, group="g"),
    )
    (gang,), _ = pending_gangs(state, 0.0)
    scratch = ScratchAllocation(state.nodes)
    assert place_by_backtracking(scratch, gang, gang.pending)
    rows = {each.pods[0].key: each.row for each in scratch.since(0)}
    assert rows == {"d/g-0": state.nodes.rows["n0"], "d/g-1": state.nodes.rows["n1"]}  # type: ignore[index]


def test_order_of_pods_is_tried_where_one_keeps_the_other_off() -> None:
    """The one that avoids others goes where they are not, whichever is placed first."""
    web = (("app", "web"),)
    state = cluster(
        node("n0", cpu=2, labels={"name": "n0"}),
        node("n1", cpu=1, labels={"name": "n1"}),
        group("g", 3),
        pod("g-0", group="g", labels=web),
        pod("g-1", group="g", labels=web),
        pod("g-2", group="g", constraints=AWAY_FROM_WEB),
    )
    (gang,), _ = pending_gangs(state, 0.0)
    scratch = ScratchAllocation(state.nodes)
    assert place_by_backtracking(scratch, gang, gang.pending)
    rows = {pod.key: each.row for each in scratch.since(0) for pod in each.pods}
    assert rows["d/g-0"] == rows["d/g-1"] != rows["d/g-2"]


NEAR_WEB = PlacementConstraints(
    inter_pod=InterPodRules(affinity=(PodTerm(parse_label_selector("app=web"), "name"),))
)


def test_pod_that_seeks_another_is_placed_after_it() -> None:
    state = cluster(
        node("n0", cpu=2, labels={"name": "n0"}),
        group("g", 2),
        pod("g-0", group="g", constraints=NEAR_WEB),
        pod("g-1", group="g", labels=(("app", "web"),)),
    )
    (gang,), _ = pending_gangs(state, 0.0)
    scratch = ScratchAllocation(state.nodes)
    assert place_by_backtracking(scratch, gang, gang.pending)
    assert [each.pods[0].key for each in scratch.since(0)] == ["d/g-1", "d/g-0"]


def test_minimum_that_needs_a_pod_beyond_it_is_placed_with_that_pod() -> None:
    """The first pod fits nowhere; the third one seeks the last, which is placed before it."""
    state = cluster(
        node("n0", cpu=4, labels={"name": "n0"}),
        group("g", 2),
        pod("g-0", cpu=9, group="g"),
        pod("g-1", group="g"),
        pod("g-2", group="g", constraints=NEAR_WEB),
        pod("g-3", cpu=2, group="g", labels=(("app", "web"),)),
    )
    (gang,), _ = pending_gangs(state, 0.0)
    scratch = ScratchAllocation(state.nodes)
    assert place_minimum(scratch, gang) == []
    assert sum(placement.count for placement in scratch.since(0)) == 3


NOW = 1000.0


def places(decision: CycleResult, name: str) -> dict[str, str]:
    """Return the reserved node of each pod of a gang."""
    found = decision.reservations.get(GroupKey(f"d/{name}"))
    nodes = found.nodes if found is not None else ()
    return {pod.removeprefix(f"d/{name}-"): str(host) for pod, host in nodes}


def busy(name: str, on: str, cpu: float, **facts: object) -> list[object]:
    """A gang of one pod that ends some time."""
    return [group(name, 1), pod(f"{name}-0", cpu=cpu, group=name, on=on, **facts)]  # type: ignore[arg-type]


@pytest.mark.parametrize("emptier", ["n0", "n1"])
def test_node_with_the_most_free_resources_is_reserved(emptier: str) -> None:
    fuller = "n1" if emptier == "n0" else "n0"
    state = cluster(
        node("n0", cpu=4),
        node("n1", cpu=4),
        *busy("small", emptier, 1),  # type: ignore[arg-type]
        *busy("large", fuller, 3),  # type: ignore[arg-type]
        *gang("wants", 1, cpu=4),
    )
    assert places(checked_cycle(state, NOW), "wants") == {"worker-0": emptier}


def test_reservation_stays_on_its_node_while_that_is_possible() -> None:
    nodes: list[NodeInfo] = [node("n0", cpu=4), node("n1", cpu=4)]
    state = cluster(
        *nodes,
        *busy("small", "n0", 1),  # type: ignore[arg-type]
        *busy("large", "n1", 3),  # type: ignore[arg-type]
        *gang("wants", 1, cpu=4),
    )
    state.reservations = dict(checked_cycle(state, NOW).reservations)
    state.remove_pod(pod("large-0").key)
    for thing in busy("tiny", "n1", 0.5):
        state.set_pod(thing) if isinstance(thing, PodInfo) else state.set_group(thing)  # type: ignore[arg-type]
    assert places(checked_cycle(state, NOW), "wants") == {"worker-0": "n0"}
    state.set_node(node("n0", cpu=4, unschedulable=True))
    assert places(checked_cycle(state, NOW), "wants") == {"worker-0": "n1"}


def test_running_members_of_the_gang_do_not_end_for_it() -> None:
    state = cluster(
        node("n0", cpu=1),
        node("n1", cpu=1),
        *busy("other", "n1", 1),  # type: ignore[arg-type]
        group("g", 2),
        pod("g-0", group="g", on="n0"),
        pod("g-1", group="g"),
    )
    assert places(checked_cycle(state, NOW), "g") == {"1": "n1"}
    state.remove_node("n1")  # type: ignore[arg-type]
    assert places(checked_cycle(state, NOW), "g") == {}


def test_extra_pods_have_no_part_in_the_reservation_if_they_do_not_fit() -> None:
    members = [pod(f"wants-{n}", cpu=2, group="wants") for n in range(3)]
    state = cluster(
        node("n0", cpu=4),
        *busy("runs", "n0", 4),  # type: ignore[arg-type]
        group("wants", 2),
        *members,
    )
    assert set(places(checked_cycle(state, NOW), "wants")) == {"0", "1"}


class NothingIsEvicted:
    """No pod that may run for ever is evicted."""

    def priority_bound(self, gang: PendingGang) -> float:
        del gang
        return float("-inf")

    def below(self, bound: float) -> list[PodInfo]:
        del bound
        return []


def test_plan_of_one_gang_takes_nothing_from_that_of_another() -> None:
    state = cluster(node("n0", cpu=4), *gang("a", 1, cpu=3), *gang("b", 2, cpu=2))
    gangs, _ = pending_gangs(state, NOW)
    planner = ReservationPlanner(state.nodes, NothingIsEvicted())
    sizes = [len(planner.plan(each) or ()) for each in (*gangs, *gangs)]
    assert all(sizes)
    assert all(planner.is_possible(each) for each in gangs)


@pytest.mark.parametrize(("wanted", "possible"), [(1, True), (2, False)])
def test_pods_that_may_be_evicted_count_once(wanted: int, possible: bool) -> None:
    class OneIsEvicted(NothingIsEvicted):
        def below(self, bound: float) -> list[PodInfo]:
            del bound
            return [evictable]

    evictable = pod("evictable", on="n0")
    lasting = pod("lasting", on="n0", preemptable=False)
    state = cluster(node("n0", cpu=2), evictable, lasting, *gang("g", 1, cpu=wanted))
    (found,), _ = pending_gangs(state, NOW)
    planner = ReservationPlanner(state.nodes, OneIsEvicted())
    assert planner.is_possible(found) == possible


def test_feasibility_of_a_running_gang_is_not_that_of_an_equal_gang_without_members() -> None:
    state = cluster(
        node("n0", cpu=2),
        *gang("new", 1, cpu=2),
        group("half", 2),
        pod("half-0", group="half", on="n0"),
        pod("half-1", group="half", cpu=2),
    )
    gangs = {each.name: each for each in pending_gangs(state, NOW)[0]}
    new, half = gangs["d/new"], gangs["d/half"]
    assert new.equivalence_key == half.equivalence_key
    planner = ReservationPlanner(state.nodes, NothingIsEvicted())
    assert [planner.is_possible(each) for each in (new, half, new)] == [True, False, True]
