"""Storage capacity: volumes are provisioned only for nodes with enough of it."""

import msgspec
import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert_storage import capacity_info, read_capacities
from gangline.scheduler.plugins.volumes import (
    ClaimInfo,
    StorageCapacities,
    StorageCapacityInfo,
    StorageClassInfo,
    VolumeInfo,
)
from gangline.scheduler.types.types import LabelExpression, NodeTerm, PlacementConstraints
from gangline.scheduler.types.wire import CSIDriver, CSIStorageCapacity
from unit.scheduler.builders import GIB, cluster, node, pod
from unit.scheduler.builders import checked_cycle as decide

DRIVER = "disk.example.com"
ANYWHERE = NodeTerm()


def in_zone(*zones: str) -> NodeTerm:
    return NodeTerm((LabelExpression("zone", "In", zones),))


def left(nodes: NodeTerm | None, gib: int | None, of: str = "fast") -> StorageCapacityInfo:
    return StorageCapacityInfo(of, nodes, gib * GIB if gib is not None else None)


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
            left(ANYWHERE, 4),
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


def test_only_publishing_drivers_are_considered() -> None:
    def driver(name: str, **spec: object) -> CSIDriver:
        return msgspec.convert({"metadata": {"name": name}, "spec": spec}, CSIDriver)

    drivers = [driver("a", storageCapacity=True), driver("b", storageCapacity=False), driver("c")]
    assert read_capacities(drivers, []).publishing_drivers == {"a"}


def test_a_pod_that_is_kept_to_other_nodes_waits() -> None:
    state = wanting(left(in_zone("a"), 99))
    state.set_pod(
        pod("p", claims=("d/c",), constraints=PlacementConstraints(selector=(("zone", "b"),)))
    )
    assert place(state) is None
