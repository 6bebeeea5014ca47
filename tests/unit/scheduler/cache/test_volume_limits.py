"""Attach limits of storage drivers: pods run on nodes with free attachments."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gangline.api.core.core import PersistentVolume
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import attach_limits, volume_info
from gangline.scheduler.plugins.volumes import ClaimInfo, StorageClassInfo, VolumeInfo
from gangline.scheduler.types import CycleResult, PodInfo, PodKey
from gangline.scheduler.wire import CSINode
from unit.scheduler.builders import DRIVER, cluster, give_volumes, group, node, pod
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import using as using_claims


def using(name: str, *claims: str, **facts: object) -> PodInfo:
    return using_claims(name, *claims, cpu=0.1, **facts)


def places(decision: CycleResult) -> dict[str, str]:
    return {binding.pod.partition("/")[2]: str(binding.node) for binding in decision.bindings}


def test_attached_volumes_count() -> None:
    state = cluster(node("a"), using("old", "c0", "c1", on="a"), using("new", "c2"))
    decision = decide(give_volumes(state, a=2))
    assert not decision.bindings
    assert "1 node(s) exceed max volume count" in decision.pending_reasons[0].message
    state.remove_pod(PodKey("d/old"))
    assert places(decide(state)) == {"new": "a"}


def test_a_claim_of_several_pods_is_attached_once_to_a_node() -> None:
    pods = [using(f"p{index}", "shared", group="g") for index in range(5)]
    state = cluster(node("a"), group("g", 5), *pods)
    assert len(places(decide(give_volumes(state, a=1)))) == 5
    assert not decide(give_volumes(state, a=0)).bindings
    state.set_pod(using("p0", "shared", group="g", on="a"))
    assert len(places(decide(give_volumes(state, a=1)))) == 4


def test_drivers_without_limit_and_unattached_volumes_are_unlimited() -> None:
    state = cluster(node("a"), using("p", "c0"), using("q", "plain"))
    state.storage.claims["d/plain"] = ClaimInfo("d/plain", volume="nfs")
    state.storage.volumes["nfs"] = VolumeInfo("nfs")
    assert len(decide(give_volumes(state, b=1)).bindings) == 2


def test_a_volume_that_is_yet_to_be_made_takes_a_place_of_its_class() -> None:
    state = cluster(node("a"), node("b"), using("p", "new"))
    state.storage.claims["d/new"] = ClaimInfo("d/new", storage_class="fast")
    state.storage.classes["fast"] = StorageClassInfo("fast", waits_for_consumer=True, driver=DRIVER)
    assert places(decide(give_volumes(state, a=0, b=1))) == {"p": "b"}


def test_places_are_counted_again_when_a_node_changes_while_a_gang_waits() -> None:
    state = cluster(node("a", cpu=1), group("g", 1), pod("g-0", cpu=4, group="g", claims=("d/c0",)))
    give_volumes(state, a=1)
    assert not decide(state).bindings
    state.set_node(node("a", cpu=8))
    assert places(decide(state)) == {"g-0": "a"}


def test_limits_drivers_and_provisioners_are_read() -> None:
    raw = {
        "metadata": {"name": "a"},
        "spec": {
            "drivers": [
                {"name": DRIVER, "nodeID": "i-1", "allocatable": {"count": 25}},
                {"name": "unlimited", "nodeID": "i-1"},
            ]
        },
    }
    assert attach_limits(msgspec.convert(raw, CSINode)) == {DRIVER: 25}
    csi = {"driver": DRIVER, "volumeHandle": "v"}
    volume = msgspec.convert({"metadata": {"name": "v"}, "spec": {"csi": csi}}, PersistentVolume)
    assert volume_info(volume).driver == DRIVER


def small(name: str, age: int, on: str | None = None) -> list[object]:
    """A gang of one pod with a volume of its own."""
    return [group(name, 1, age), using(f"{name}-0", name, group=name, age=age, on=on)]


def run(state: SchedulerCache) -> dict[str, str]:
    """Decide, and count the pods where they go."""
    decision = decide(state)
    state.reservations = dict(decision.reservations)
    for binding in decision.bindings:
        state.assume(binding.pod, binding.node)
    return {binding.pod.removeprefix("d/"): str(binding.node) for binding in decision.bindings}


def end(state: SchedulerCache, *names: str) -> None:
    for name in names:
        state.remove_pod(PodKey(f"d/{name}"))


def large(name: str, *claims: str, age: int = 10) -> list[object]:
    """A gang of one pod with several volumes."""
    return [group(name, 1, age), using(f"{name}-0", *claims, group=name, age=age)]


@pytest.mark.parametrize("requested", [("x", "y"), ("x", "dataset")], ids=["own", "shared"])
def test_a_stream_of_small_jobs_does_not_keep_the_last_places_from_the_first_in_line(
    requested: tuple[str, str],
) -> None:
    state = cluster(
        node("a"), *small("s0", 0, "a"), *small("s1", 1, "a"), *large("big", *requested)
    )  # type: ignore[arg-type]
    if "dataset" in requested:
        state.set_pod(using("gated", "dataset", is_gated=True))
        state.set_pod(using("other", "dataset", age=99))
    give_volumes(state, a=2)
    assert run(state) == {}
    assert "d/big" in state.reservations
    for index in (2, 3):
        for thing in small(f"s{index}", 10 + index):
            (state.set_pod if isinstance(thing, PodInfo) else state.set_group)(thing)  # type: ignore[arg-type]
        give_volumes(state)
        end(state, f"s{index - 2}-0")
        placed = run(state)
    assert placed["big-0"] == "a"
    assert not {"s2-0", "s3-0"} & placed.keys()


def test_others_use_the_places_that_the_first_in_line_does_not_need() -> None:
    state = cluster(node("a"), node("b"), *small("s0", 0, "a"), *large("big", "x", "y"))  # type: ignore[arg-type]
    for thing in small("late", 20):
        (state.set_pod if isinstance(thing, PodInfo) else state.set_group)(thing)  # type: ignore[arg-type]
    give_volumes(state, a=2, b=1)
    assert run(state) == {"late-0": "b"}


def test_places_of_pods_without_a_gang_are_not_waited_for() -> None:
    state = cluster(node("a"), using("service", "s", on="a"), *large("big", "x", "y"))  # type: ignore[arg-type]
    for thing in small("late", 20):
        (state.set_pod if isinstance(thing, PodInfo) else state.set_group)(thing)  # type: ignore[arg-type]
    give_volumes(state, a=2)
    assert run(state) == {"late-0": "a"}
    assert not state.reservations


def test_different_shared_claims_of_one_decision_take_a_place_each() -> None:
    pods = [using(f"{claim}-{i}", claim, age=i) for i in range(2) for claim in ("c", "d", "e")]
    state = give_volumes(cluster(node("a"), *pods), a=2)
    placed = run(state)
    assert sorted(placed) == ["c-0", "c-1", "d-0", "d-1"]


def test_shared_claim_leaves_other_attachments_to_own_claims() -> None:
    pods = [using(f"p{i}", "shared", age=i) for i in range(3)]
    state = cluster(node("a"), *pods, *(using(f"own{i}", f"c{i}", age=9 + i) for i in range(3)))
    placed = run(give_volumes(state, a=2))
    assert sorted(placed) == ["own0", "p0", "p1", "p2"]


@given(some.data())
def test_no_node_ever_attaches_more_than_it_can(data: some.DataObject) -> None:
    draw = data.draw
    names = [f"c{index}" for index in range(4)]
    claims = some.lists(some.sampled_from(names), max_size=3, unique=True)
    state = cluster(node("a"), node("b"))
    for index in range(draw(some.integers(1, 4))):
        size = draw(some.integers(1, 3))
        state.set_group(group(f"g{index}", size, index))
        for each in range(size):
            state.set_pod(using(f"g{index}-{each}", *draw(claims), group=f"g{index}", age=index))
    give_volumes(state, a=draw(some.integers(0, 3)), b=draw(some.integers(0, 3)))
    for _ in range(3):
        run(state)
        running = sorted(pod.key for pod in state.pods.values() if pod.holds_resources)
        if running:
            state.remove_pod(running[0])
