"""Claims: the nodes they allow, what keeps pods pending, and which volumes are used."""

from typing import cast

import msgspec
import pytest

from gangline.api.core.core import PersistentVolume, PersistentVolumeClaim, StorageClass
from gangline.kube.client.client import ApiClient
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import (
    capacity_info,
    claim_info,
    pod_info,
    storage_class_info,
    volume_info,
)
from gangline.scheduler.informers import StorageCapacityInformers
from gangline.scheduler.plugins.volumes import (
    CLAIM_IN_USE,
    NO_VOLUMES,
    UNBOUND_IMMEDIATE_CLAIMS,
    VOLUME_AFFINITY_CONFLICT,
    ClaimInfo,
    StorageCapacities,
    StorageCapacityInfo,
    StorageClassInfo,
    VolumeInfo,
)
from gangline.scheduler.types import (
    CycleResult,
    LabelExpression,
    NodeInfo,
    NodeTerm,
)
from gangline.scheduler.wire import CSIDriver, CSIStorageCapacity, LeanPod, slim_pod
from unit.scheduler.builders import GIB, cluster, group, node, placed, pod, using
from unit.scheduler.builders import checked_cycle as decide

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


def claim(
    name: str, made_by: str | None = "local", volume: str = "", **spec: object
) -> PersistentVolumeClaim:
    raw = {
        "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": made_by,
            "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
        "status": {"phase": "Bound" if volume else "Pending"},
    }
    return msgspec.convert(raw, PersistentVolumeClaim)


def volume(
    name: str,
    host: str = "",
    size: str = "1Gi",
    reserved_for: str = "",
    uid: str = "",
    **labels: str,
) -> PersistentVolume:
    owner = {"namespace": "d", "name": reserved_for, "uid": uid} if reserved_for else None
    here = {"key": HOST, "operator": "In", "values": [host]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    raw = {
        "metadata": {
            "name": name,
            "labels": {key.replace("__", "/"): v for key, v in labels.items()},
        },
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "nodeAffinity": affinity if host else None,
            "claimRef": owner,
        },
    }
    return msgspec.convert(raw, PersistentVolume)


def storage_class(
    name: str = "local", provisioner: str = "kubernetes.io/no-provisioner", **fields: object
) -> StorageClass:
    raw = {
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
        **fields,
    }
    return msgspec.convert(raw, StorageClass)


def with_storage(
    state: SchedulerCache, *things: PersistentVolumeClaim | PersistentVolume | StorageClass
) -> SchedulerCache:
    for thing in things:
        match thing:
            case PersistentVolumeClaim():
                claimed = claim_info(thing)
                state.storage.claims[claimed.key] = claimed
            case PersistentVolume():
                state.storage.volumes[thing.metadata.name] = volume_info(thing)
            case StorageClass():
                state.storage.classes[thing.metadata.name] = storage_class_info(thing)
    state.storage.synced = True
    state.storage_changed()
    return state


def nodes() -> list[NodeInfo]:
    return [
        node(name, cpu=4, labels={HOST: name, ZONE: zone})
        for name, zone in (("a", "z1"), ("b", "z2"))
    ]


def why(decision: CycleResult, name: str) -> str:
    return next(
        text for v in decision.pending_reasons for key, text in v.pods if key == f"d/{name}"
    )


def test_a_bound_claim_keeps_its_pod_to_the_nodes_that_reach_the_volume() -> None:
    state = with_storage(
        cluster(*nodes(), using("p", "c"), pod("full", cpu=4)),
        claim("c", volume="v"),
        volume("v", host="b"),
    )
    assert placed(decide(state))["p"] == "b"
    state.set_pod(pod("full", cpu=4, on="b"))
    decision = decide(state)
    assert "p" not in placed(decision)
    assert f"1 {VOLUME_AFFINITY_CONFLICT}" in why(decision, "p")
    assert "1 Insufficient cpu" in why(decision, "p")


def test_a_volume_of_a_zone_is_reached_from_its_zone_alone() -> None:
    here = {ZONE.replace("/", "__"): "z2"}
    state = with_storage(
        cluster(*nodes(), using("p", "c")), claim("c", volume="v"), volume("v", **here)
    )
    assert placed(decide(state)) == {"p": "b"}


def test_unbound_immediate_claim_keeps_its_pod_pending() -> None:
    state = with_storage(cluster(*nodes(), using("p", "c"), using("q", "gone")), claim("c", "none"))
    decision = decide(state)
    assert why(decision, "p").startswith(f"0/2 nodes are available: 2 {UNBOUND_IMMEDIATE_CLAIMS}.")
    assert '2 persistentvolumeclaim "gone" not found' in why(decision, "q")


def test_a_class_that_makes_volumes_keeps_pods_to_where_it_may() -> None:
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["z2"]}]}]
    made = storage_class("cloud", "csi.example.com", allowedTopologies=allowed)
    state = with_storage(cluster(*nodes(), using("p", "c")), claim("c", "cloud"), made)
    assert placed(decide(state)) == {"p": "b"}


def test_the_default_class_is_meant_where_a_claim_names_none() -> None:
    marked = {"name": "d", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    made = storage_class("d", "csi.example.com", metadata=marked)
    state = with_storage(cluster(*nodes(), using("p", "c")), claim("c", None), made)
    assert "p" in placed(decide(state))


def test_a_claim_of_one_pod_alone_is_used_by_one_at_a_time() -> None:
    once = claim("c", volume="v", accessModes=["ReadWriteOncePod"])
    state = cluster(*nodes(), using("p", "c"), using("q", "c"))
    with_storage(state, once, volume("v"))
    decision = decide(state)
    assert set(placed(decision)) == {"p"}
    assert CLAIM_IN_USE in why(decision, "q")
    state.remove_pod(decision.bindings[0].pod)
    assert set(placed(decide(state))) == {"q"}


def test_claims_are_ignored_until_storage_is_synced() -> None:
    assert "p" in placed(decide(cluster(*nodes(), using("p", "c"))))


def test_smallest_volume_that_fits_is_chosen_and_a_reserved_one_before_all() -> None:
    free = [volume("big", "a", "9Gi"), volume("fit", "a", "2Gi")]
    state = with_storage(cluster(*nodes(), using("p", "c")), storage_class(), claim("c"), *free)
    assert decide(state).volumes == {"d/c": "fit"}
    with_storage(state, volume("kept", "b", "3Gi", reserved_for="c"))
    decision = decide(state)
    assert (placed(decision), decision.volumes) == ({"p": "b"}, {"d/c": "kept"})


@pytest.mark.parametrize("uid", ["", "uid-other", "uid-former"])
def test_volume_that_is_reserved_for_another_claim_is_not_chosen(uid: str) -> None:
    # A claim of the name may be a former one with another uid.
    name = "c" if uid == "uid-former" else "other"
    state = with_storage(cluster(*nodes(), using("p", "c")), storage_class(), claim("c"))
    with_storage(state, volume("kept", "a", reserved_for=name, uid=uid))
    decision = decide(state)
    assert f"2 {NO_VOLUMES}" in why(decision, "p")
    with_storage(state, volume("free", "b"))
    assert decide(state).volumes == {"d/c": "free"}


def test_volume_that_another_claim_names_is_not_chosen() -> None:
    state = with_storage(cluster(*nodes(), using("p", "c"), using("q", "named")), storage_class())
    with_storage(state, claim("c"), claim("named", volumeName="v"), volume("v", "a"))
    decision = decide(state)
    assert not decision.bindings
    assert UNBOUND_IMMEDIATE_CLAIMS in why(decision, "q")


def test_chosen_volume_is_assumed_until_its_claim_is_bound_or_the_pod_is_pending_again() -> None:
    state = with_storage(cluster(*nodes(), using("p", "c", age=1), using("q", "e", age=2)))
    with_storage(state, storage_class(), claim("c"), claim("e"), volume("v", "a"))
    first = decide(state)
    state.assume(first.bindings[0].pod, first.bindings[0].node, first.volumes)
    assert not decide(state).bindings
    state.forget_assumed(first.bindings[0].pod, "uid-p")
    state.remove_pod(first.bindings[0].pod)
    assert decide(state).volumes == {"d/e": "v"}


def test_claims_are_read_from_pods_also_those_made_with_them() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "settings", "configMap": {"name": "x"}},
    ]
    raw = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"volumes": volumes}}
    lean = slim_pod(msgspec.convert(raw, LeanPod))
    assert len(lean.spec.volumes) == 2
    assert pod_info(lean, {}, frozenset()).claims == ("d/c", "d/p-scratch")


DRIVER = "disk.example.com"
ANYWHERE = NodeTerm()


def in_zone(*zones: str) -> NodeTerm:
    return NodeTerm((LabelExpression("zone", "In", zones),))


def left(
    nodes: NodeTerm | None, gib: int | None, of: str = "fast", total: int | None = None
) -> StorageCapacityInfo:
    """A capacity of this size, of which a single volume may have ``gib``."""
    largest, every = (size * GIB if size is not None else None for size in (gib, total or gib))
    return StorageCapacityInfo(of, nodes, largest, every)


def wanting(
    *capacities: StorageCapacityInfo, size: int = 10, publishing: bool = True, known: bool = True
) -> SchedulerCache:
    """A pod whose claim waits for it, on nodes in zones a and b."""
    state = cluster(
        node("n-a", labels={"zone": "a"}),
        node("n-b", labels={"zone": "b"}),
        pod("p", claims=("d/c",)),
    )
    storage = state.storage
    storage.classes["fast"] = StorageClassInfo("fast", waits_for_consumer=True, driver=DRIVER)
    storage.claims["d/c"] = ClaimInfo("d/c", storage_class="fast", size=size * GIB)
    storage.capacities = StorageCapacities(
        known, {DRIVER} if publishing else set(), {str(i): c for i, c in enumerate(capacities)}
    )
    storage.synced = True
    state.storage_changed()
    return state


def place(state: SchedulerCache) -> str | None:
    return next((str(binding.node) for binding in decide(state).bindings), None)


@pytest.mark.parametrize(
    ("capacities", "chosen"),
    [
        pytest.param([left(in_zone("b"), 10), left(in_zone("a"), 9)], "n-b", id="just enough"),
        pytest.param([left(in_zone("b"), 6), left(in_zone("b"), 6)], None, id="not added up"),
        pytest.param([left(ANYWHERE, 10)], "n-a", id="everywhere"),
        pytest.param([left(None, 99)], None, id="no node reaches it"),
        pytest.param([left(in_zone("a"), None)], None, id="not reported"),
        pytest.param([left(in_zone("a"), 99, "slow")], None, id="another class"),
        pytest.param([], None, id="none at all"),
    ],
)
def test_volume_is_provisioned_only_with_enough_capacity(
    capacities: list[StorageCapacityInfo], chosen: str | None
) -> None:
    assert place(wanting(*capacities)) == chosen


def with_claims(state: SchedulerCache, **sizes: int) -> SchedulerCache:
    for name, size in sizes.items():
        state.storage.claims[f"d/{name}"] = ClaimInfo(
            f"d/{name}", storage_class="fast", size=size * GIB
        )
    state.storage_changed()
    return state


@pytest.mark.parametrize(
    ("capacity", "starts"),
    [
        pytest.param(left(ANYWHERE, 10, total=12), True, id="enough for both"),
        pytest.param(left(ANYWHERE, 10, total=11), False, id="enough for each"),
        pytest.param(StorageCapacityInfo("fast", ANYWHERE, 10 * GIB), True, id="total unknown"),
    ],
)
def test_capacity_of_the_volumes_of_a_gang_is_added_up(
    capacity: StorageCapacityInfo, starts: bool
) -> None:
    """One pod has two claims of 4, another one a claim of 4."""
    state = with_claims(wanting(capacity), a=4, b=4, e=4)
    state.remove_pod(pod("p").key)
    state.set_group(group("g", 2))
    state.set_pod(pod("g-0", group="g", claims=("d/a", "d/b")))
    state.set_pod(pod("g-1", group="g", claims=("d/e",)))
    decision = decide(state)
    assert len(decision.bindings) == (2 if starts else 0)
    if not starts:
        message = decision.pending_reasons[0].message
        assert "did not have enough free storage (4Gi free of class 'fast')" in message


def test_volumes_are_provisioned_where_capacity_is_left() -> None:
    """The second pod goes to the other zone; once that is bound, the third finds nothing."""
    state = wanting(left(in_zone("a"), 6), left(in_zone("b"), 6), size=4)
    with_claims(state, e=4, f=4)
    state.set_pod(pod("q", claims=("d/e",)))
    first = decide(state)
    assert {str(binding.node) for binding in first.bindings} == {"n-a", "n-b"}
    for binding in first.bindings:
        state.assume(binding.pod, binding.node, first.volumes)
    state.set_pod(pod("r", claims=("d/f",)))
    assert not decide(state).bindings


def test_capacity_is_unlimited_until_published_and_synced() -> None:
    assert place(wanting(publishing=False))
    assert place(wanting(known=False))
    assert place(wanting(size=0))


def test_capacity_message_names_size_and_class() -> None:
    message = decide(wanting(left(in_zone("a"), 5))).pending_reasons[0].message
    assert "2 node(s) did not have enough free storage (10Gi free of class 'fast')" in message


def test_a_free_volume_needs_no_storage() -> None:
    state = wanting()
    free = VolumeInfo("pv", (in_zone("b"),), "fast", size=10 * GIB, driver=DRIVER)
    state.storage.volumes["pv"] = free
    state.storage_changed()
    assert place(state) == "n-b"


def test_allowed_topology_and_capacity_are_both_required() -> None:
    state = wanting(left(in_zone("a"), 99))
    for zone, chosen in (("b", None), ("a", "n-a")):
        allowed = StorageClassInfo(
            "fast", waits_for_consumer=True, driver=DRIVER, allowed_terms=(in_zone(zone),)
        )
        state.storage.classes["fast"] = allowed
        state.storage_changed()
        assert place(state) == chosen


def test_pending_pod_is_placed_when_storage_is_added() -> None:
    state = wanting(left(in_zone("a"), 5))
    assert place(state) is None
    state.storage.capacities.facts["0"] = left(in_zone("a"), 50)
    state.storage_changed()
    assert place(state) == "n-a"


@pytest.mark.parametrize(
    ("written", "facts"),
    [
        (
            {"capacity": "10Gi", "nodeTopology": {"matchLabels": {"zone": "a"}}},
            left(NodeTerm((LabelExpression("zone", "In", ("a",)),)), 10),
        ),
        (
            {"capacity": "10Gi", "maximumVolumeSize": "4Gi", "nodeTopology": {}},
            left(ANYWHERE, 4, total=10),
        ),
        (
            {
                "nodeTopology": {
                    "matchExpressions": [
                        {"key": "zone", "operator": "NotIn", "values": ["a", "b"]},
                        {"key": "disk", "operator": "Exists"},
                        {"key": "old", "operator": "DoesNotExist"},
                    ]
                }
            },
            left(
                NodeTerm(
                    (
                        LabelExpression("zone", "NotIn", ("a", "b")),
                        LabelExpression("disk", "Exists"),
                        LabelExpression("old", "DoesNotExist"),
                    )
                ),
                None,
            ),
        ),
        ({"capacity": "1Gi"}, left(None, 1)),
        (
            {
                "capacity": "1Gi",
                "nodeTopology": {"matchExpressions": [{"key": "a", "operator": "Like"}]},
            },
            left(None, 1),
        ),
    ],
)
def test_capacities_are_read(written: dict[str, object], facts: StorageCapacityInfo) -> None:
    capacity = {"metadata": {"name": "c", "namespace": "d"}, "storageClassName": "fast", **written}
    assert capacity_info(msgspec.convert(capacity, CSIStorageCapacity)) == facts


async def test_only_publishing_drivers_are_considered() -> None:
    def driver(name: str, **spec: object) -> CSIDriver:
        return msgspec.convert({"metadata": {"name": name}, "spec": spec}, CSIDriver)

    drivers = [driver("a", storageCapacity=True), driver("b", storageCapacity=False), driver("c")]
    state = SchedulerCache()
    informers = StorageCapacityInformers(cast(ApiClient, None), state, lambda: None)
    await informers.drivers.fill(drivers)
    assert state.storage.capacities.publishing_drivers == {"a"}
