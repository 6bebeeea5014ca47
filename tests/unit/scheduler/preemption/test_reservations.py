"""Pods that join a gang when it runs, such as a launcher, have their resources from its start."""

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import json, structs

from gangline.api.volcano.scheduling import (
    JOINING_PODS_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    PodGroup,
)
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.preemption.reservations import (
    LOST_MEMBER_RESERVATION_S,
    PREEMPTOR_RESERVATION_S,
    PreemptorReservations,
    restart_reservations,
    valid_reservations,
)
from gangline.scheduler.queueing.gangs import pending_gangs
from gangline.scheduler.reporting.warnings import unreadable_group_fields
from gangline.scheduler.types import (
    NodeInfo,
    NodeName,
    PodGroupInfo,
    PodInfo,
    PodKey,
    PreviousNodes,
    QueueInfo,
    Reservation,
)
from unit.scheduler.builders import cluster, decide, gang, group, node, placed, pod, request

TIGHT = (node("n0", cpu=4), node("n1", cpu=4))
"""Two pods fit."""


def launcher(job: str, age: int = 0, **facts: object) -> PodInfo:
    return pod(f"{job}-launcher", cpu=4, group=job, age=age, role="launcher", **facts)  # type: ignore[arg-type]


def job(name: str, age: int = 0, workers: int = 1, queue: str = "default") -> list[object]:
    """A gang of workers that a launcher joins."""
    expected = structs.replace(launcher(name, age), uid="", is_expected=True)
    facts = {"min_task_member": (("worker", workers),), "joining": (expected,), "queue": queue}
    members = [
        pod(f"{name}-worker-{index}", cpu=4, group=name, age=age, role="worker")
        for index in range(workers)
    ]
    return [group(name, workers, age, **facts), *members]


def run(state: SchedulerCache) -> dict[str, str]:
    """Decide, and run what was placed; return the nodes."""
    places = placed(decide(state))
    for key, known in list(state.pods.items()):
        name = key.removeprefix("d/")
        if name in places:
            state.set_pod(structs.replace(known, node=places[name], phase="Running"))
    return places


def two_jobs(*nodes: NodeInfo) -> SchedulerCache:
    return cluster(*(nodes or TIGHT), *job("a"), *job("b", age=1))  # type: ignore[arg-type]


def test_two_tight_jobs_run_one_after_the_other() -> None:
    state = two_jobs()
    assert list(run(state)) == ["a-worker-0"]
    assert run(state) == {}, "the other node is reserved for the launcher"
    state.set_pod(launcher("a"))
    assert list(run(state)) == ["a-launcher"]
    assert run(state) == {}
    for name in ("a-worker-0", "a-launcher"):
        known = state.pods[f"d/{name}"]  # type: ignore[index]
        state.set_pod(structs.replace(known, phase="Succeeded"))
    assert list(run(state)) == ["b-worker-0"]
    state.set_pod(launcher("b", 1))
    assert list(run(state)) == ["b-launcher"]


def test_reason_names_the_gang_whose_launcher_is_awaited() -> None:
    state = two_jobs(*TIGHT, node("n2", cpu=4))
    run(state)
    (reason,) = decide(state).pending_reasons
    assert reason.group == "d/b"
    assert [pod for pod, _ in reason.pods] == ["d/b-worker-0"], "only pods that exist"
    assert "reserved for d/a" in reason.message


def test_gang_does_not_start_where_its_launcher_would_never_fit() -> None:
    state = cluster(node("n0", cpu=4), *job("a"))  # type: ignore[arg-type]
    decision = decide(state)
    assert not decision.bindings
    assert [reason.group for reason in decision.pending_reasons] == ["d/a"]


def test_launcher_that_is_replaced_keeps_its_resources() -> None:
    state = two_jobs()
    run(state)
    state.set_pod(launcher("a"))
    run(state)
    state.set_pod(structs.replace(state.pods["d/a-launcher"], phase="Failed"))  # type: ignore[index]
    assert run(state) == {}
    state.remove_pod("d/a-launcher")  # type: ignore[arg-type]
    assert run(state) == {}
    state.set_pod(launcher("a"))
    assert list(run(state)) == ["a-launcher"]


def test_launcher_that_succeeded_needs_no_resources() -> None:
    state = two_jobs()
    run(state)
    state.set_pod(launcher("a", on="n1", phase="Succeeded"))
    state.set_pod(pod("single", cpu=4))
    assert list(run(state)) == ["single"]


def test_broken_gang_gets_its_worker_and_its_launcher_back_together() -> None:
    state = cluster(*TIGHT, node("n2", cpu=4), *job("a", workers=2))  # type: ignore[arg-type]
    assert len(run(state)) == 2
    lost = state.pods["d/a-worker-1"]  # type: ignore[index]
    state.remove_pod(lost.key)
    state.record_lost_member(lost, 0.0, 60.0)
    state.set_pod(pod("single", cpu=4, priority=5))
    assert run(state) == {}, "one node for the worker, one for the launcher"
    state.set_pod(structs.replace(lost, node=None, phase="Pending"))
    assert list(run(state)) == ["a-worker-1"]


def test_queue_keeps_the_share_of_the_launcher() -> None:
    queue = QueueInfo("q", capability=request(cpu=8, pods=0))
    nodes = [node(f"n{index}", cpu=4) for index in range(4)]
    state = cluster(*nodes, queue, *job("a", queue="q"), *job("b", age=1, queue="q"))  # type: ignore[arg-type]
    assert list(run(state)) == ["a-worker-0"]
    assert run(state) == {}
    state.set_pod(launcher("a"))
    assert list(run(state)) == ["a-launcher"]


def annotated(written: str) -> PodGroup:
    group = PodGroup()
    metadata = structs.replace(
        group.metadata, name="a", namespace="d", annotations={JOINING_PODS_ANNOTATION: written}
    )
    return structs.replace(group, metadata=metadata)


def test_annotation_lists_the_pods() -> None:
    container = {"name": "node", "resources": {"requests": {"cpu": "4"}}}
    spec = {"containers": [container], "nodeSelector": {"zone": "a"}, "schedulerName": "other"}
    written = json.encode([{"names": ["a-launcher"], "role": "launcher", "spec": spec}]).decode()
    (found,) = group_info(annotated(written), {}).joining
    assert (found.key, found.group, found.role) == ("d/a-launcher", "d/a", "launcher")
    assert dict(found.shape.request) == {"cpu": 4000, "pods": 1}
    assert found.shape.constraints.selector == (("zone", "a"),)
    assert found.is_expected
    assert found.is_pending


def test_annotation_that_cannot_be_read_is_reported() -> None:
    for written in (
        "{",
        '[{"role": "launcher"}]',
        "[1]",
        '[{"names": ["a"], "spec": {"volumes": 1}}]',
    ):
        group = annotated(written)
        assert group_info(group, {}).joining == ()
        assert "joining-pods does not list pods" in unreadable_group_fields(group)


MADE = 1000.0


def reserved(*places: tuple[str, str], preempting: bool = True, at: float = MADE) -> Reservation:
    return Reservation(
        tuple((PodKey(f"d/{name}"), NodeName(host)) for name, host in places),
        created_at=at,
        preempting=preempting,
    )


def valid(state: SchedulerCache, now: float = MADE) -> PreemptorReservations:
    gangs, _ = pending_gangs(state, now)
    return valid_reservations(state, gangs, now)


def two_waiting(*more: object) -> SchedulerCache:
    """Two nodes of one processor, with pods that end, and two gangs of two that wait."""
    return cluster(
        node("n0", cpu=1),
        node("n1", cpu=1),
        *more,  # type: ignore[arg-type]
        *gang("old", 2, age=1),
        *gang("new", 2, age=2),
    )


BOTH = (("{}-worker-0", "n0"), ("{}-worker-1", "n1"))


def both(name: str, **facts: object) -> Reservation:
    return reserved(*((pod.format(name), host) for pod, host in BOTH), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "now", "is_valid"),
    [
        pytest.param({}, MADE, True, id="fresh"),
        pytest.param({}, MADE + PREEMPTOR_RESERVATION_S, False, id="expired"),
        pytest.param({"preempting": False}, MADE, False, id="of a gang that evicts nobody"),
    ],
)
def test_valid_reservations_name_the_placements(
    facts: dict[str, object], now: float, is_valid: bool
) -> None:
    state = two_waiting()
    state.reservations["d/new"] = both("new", **facts)
    found = valid(state, now)
    assert set(found.placements) == ({"d/new"} if is_valid else set())
    gangs, _ = pending_gangs(state, now)
    by_name = {each.name: each for each in gangs}
    kept = found.with_nominated_nodes(by_name["d/new"]).nominated_nodes
    assert kept == (state.reservations["d/new"].nodes if is_valid else ())
    assert found.with_nominated_nodes(by_name["d/old"]) is by_name["d/old"]
    for placement in found.placements.get("d/new", []):
        assert placement.pods[0].key.startswith("d/new-worker-")


@pytest.mark.parametrize("ends", [True, False])
def test_pods_on_the_nodes_must_be_ending(ends: bool) -> None:
    running = [pod(f"r{n}", on=f"n{n}", is_terminating=ends) for n in range(2)]
    state = two_waiting(*running)
    state.reservations["d/new"] = both("new")
    assert bool(valid(state).placements) == ends


def test_gang_that_is_served_first_keeps_its_nodes() -> None:
    state = two_waiting()
    state.reservations["d/new"] = both("new")
    state.reservations["d/old"] = both("old")
    assert set(valid(state).placements) == {"d/old"}


def test_room_of_a_reservation_that_is_no_more_valid_is_free_for_later_ones() -> None:
    """The first gang has lost one of its nodes: it gives back the other one."""
    state = two_waiting()
    state.reservations["d/old"] = reserved(("old-worker-0", "n0"), ("old-worker-1", "gone"))
    state.reservations["d/new"] = both("new")
    assert set(valid(state).placements) == {"d/new"}


def test_gang_that_does_not_wait_any_more_reserves_nothing() -> None:
    state = two_waiting()
    state.reservations["d/gone"] = both("gone")
    assert valid(state).placements == {}


NOW = 1_000.0


def written(text: str) -> PodGroupInfo:
    raw = {
        "metadata": {
            "name": "g",
            "namespace": "d",
            "annotations": {PREVIOUS_NODES_ANNOTATION: text},
        }
    }
    return group_info(msgspec.convert(raw, PodGroup), {})


def test_previous_nodes_are_read_from_the_annotation() -> None:
    assert PREVIOUS_NODES_ANNOTATION == "gangline.dev/previous-nodes"
    until = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    text = '{"until": "2026-01-01T00:00:00Z", "nodes": {"j0": "a"}}'
    assert written(text).previous_nodes == PreviousNodes(until, ((PodKey("d/j0"), NodeName("a")),))


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
