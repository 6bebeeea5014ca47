"""Attach limits of storage drivers: pods run on nodes with free attachments."""

import msgspec

from gangline.api.core.core import PersistentVolume
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert_storage import attach_limits, volume_info
from gangline.scheduler.plugins.volumes import ClaimInfo, StorageClassInfo, VolumeInfo
from gangline.scheduler.types.types import CycleResult, NodeName, PodInfo, PodKey
from gangline.scheduler.types.wire import CSINode
from unit.scheduler.builders import checked_cycle as decide
from unit.scheduler.builders import cluster, group, node, pod

DRIVER = "disk.example.com"


def disks(state: SchedulerCache, *names: str, **limits: int) -> SchedulerCache:
    """Claims with volumes of their own, that nodes attach up to their limit."""
    for name in names:
        state.storage.claims[f"d/{name}"] = ClaimInfo(f"d/{name}", volume=f"pv-{name}")
        state.storage.volumes[f"pv-{name}"] = VolumeInfo(f"pv-{name}", driver=DRIVER)
    for host, limit in limits.items():
        state.storage.limits[NodeName(host)] = {DRIVER: limit}
    state.storage.synced = True
    state.storage_changed()
    return state


def using(name: str, *claims: str, **facts: object) -> PodInfo:
    keys = tuple(f"d/{claim}" for claim in claims)
    return pod(name, cpu=0.1, claims=keys, **facts)  # type: ignore[arg-type]


def places(decision: CycleResult) -> dict[str, str]:
    return {binding.pod.partition("/")[2]: str(binding.node) for binding in decision.bindings}


def test_a_node_takes_no_more_volumes_than_it_can_attach() -> None:
    state = cluster(node("a"), node("b"), *(using(f"p{i}", f"c{i}", age=i) for i in range(4)))
    found = places(decide(disks(state, "c0", "c1", "c2", "c3", a=2, b=1)))
    assert sorted(found.values()) == ["a", "a", "b"]


def test_attached_volumes_count() -> None:
    state = cluster(node("a"), using("old", "c0", "c1", on="a"), using("new", "c2"))
    decision = decide(disks(state, "c0", "c1", "c2", a=2))
    assert not decision.bindings
    assert "1 node(s) exceed max volume count" in decision.pending_reasons[0].message
    state.remove_pod(PodKey("d/old"))
    assert places(decide(state)) == {"new": "a"}


def test_a_claim_of_several_pods_is_attached_once_to_a_node() -> None:
    pods = [using(f"p{index}", "shared", group="g") for index in range(5)]
    state = cluster(node("a"), group("g", 5), *pods)
    assert len(places(decide(disks(state, "shared", a=1)))) == 5
    assert not decide(disks(state, "shared", a=0)).bindings
    state.set_pod(using("p0", "shared", group="g", on="a"))
    assert len(places(decide(disks(state, a=1)))) == 4


def test_drivers_without_limit_and_unattached_volumes_are_unlimited() -> None:
    state = disks(cluster(node("a"), using("p", "c0"), using("q", "plain")), "c0", b=1)
    state.storage.claims["d/plain"] = ClaimInfo("d/plain", volume="nfs")
    state.storage.volumes["nfs"] = VolumeInfo("nfs")
    assert len(decide(state).bindings) == 2


def test_a_volume_that_is_yet_to_be_made_takes_a_place_of_its_class() -> None:
    state = cluster(node("a"), node("b"), using("p", "new"))
    state.storage.claims["d/new"] = ClaimInfo("d/new", storage_class="fast")
    state.storage.classes["fast"] = StorageClassInfo("fast", waits_for_consumer=True, driver=DRIVER)
    assert places(decide(disks(state, a=0, b=1))) == {"p": "b"}


def test_places_are_counted_again_when_a_node_changes_while_a_gang_waits() -> None:
    state = cluster(node("a", cpu=1), group("g", 1), pod("g-0", cpu=4, group="g", claims=("d/c0",)))
    disks(state, "c0", a=1)
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
