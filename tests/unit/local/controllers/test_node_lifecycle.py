"""Node health: lost nodes, and the eviction of their pods."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gangline.api.core.affinity import Toleration
from gangline.api.core.core import Lease, LeaseSpec, Node, NodeSpec, NodeStatus, Taint
from gangline.api.core.pod import Pod, PodSpec
from gangline.api.meta.objects import Condition, ObjectMeta
from gangline.api.meta.resource import Resource
from gangline.api.resources import LEASES, NODES
from gangline.kube.informers.indexer import Indexer, ObjectKey
from gangline.local.controllers import node_lifecycle
from gangline.local.controllers.node_lifecycle import (
    LEASE_NAMESPACE,
    NOT_READY,
    UNREACHABLE,
    UNSCHEDULABLE,
    Heartbeats,
    NodeUpdate,
    eviction_time,
    plan_node_update,
    unready_conditions,
)
from unit.local.controllers.builders import NOW, a_pod


def a_node(ready: str = "True", *taints: Taint, unschedulable: bool = False) -> Node:
    return Node(
        metadata=ObjectMeta(name="n"),
        spec=NodeSpec(taints=list(taints), unschedulable=unschedulable),
        status=NodeStatus(conditions=[Condition(type="Ready", status=ready)]),
    )


@pytest.mark.parametrize(
    ("node", "silent", "status", "taints"),
    [
        pytest.param(a_node(), False, None, None, id="a healthy node is left alone"),
        pytest.param(
            a_node(),
            True,
            "Unknown",
            [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
            id="a silent one is unreachable",
        ),
        pytest.param(
            a_node("False"),
            False,
            None,
            [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
            id="one that reports it is not ready",
        ),
        pytest.param(
            a_node(
                "True",
                Taint(key="mine", effect="NoSchedule"),
                Taint(key=UNREACHABLE, effect="NoExecute", time_added=NOW),
            ),
            False,
            None,
            [("mine", "NoSchedule")],
            id="a ready one loses only managed taints",
        ),
        pytest.param(
            a_node(unschedulable=True), False, None, [(UNSCHEDULABLE, "NoSchedule")], id="cordoned"
        ),
    ],
)
def test_a_node_gets_the_conditions_and_taints_of_its_state(
    node: Node, silent: bool, status: str | None, taints: list[tuple[str, str]] | None
) -> None:
    change = plan_node_update(node, silent=silent, now=NOW)
    assert {c.status for c in change.conditions or []} == ({status} if status else set())
    keys = None if change.taints is None else [(t.key, t.effect) for t in change.taints]
    assert keys == taints


def test_a_taint_keeps_the_time_that_it_was_put_on() -> None:
    before = NOW - timedelta(minutes=5)
    old = Taint(key=UNREACHABLE, effect="NoExecute", time_added=before)
    change = plan_node_update(a_node("Unknown", old), silent=True, now=NOW)
    assert change.taints is not None
    assert old in change.taints


def tolerating(*tolerations: Toleration) -> Pod:
    return a_pod(spec=PodSpec(tolerations=list(tolerations)))


LOST = Taint(key=UNREACHABLE, effect="NoExecute", time_added=NOW - timedelta(seconds=100))


@pytest.mark.parametrize(
    ("pod", "taints", "leaves"),
    [
        pytest.param(tolerating(), [LOST], NOW, id="a taint without toleration evicts immediately"),
        pytest.param(
            tolerating(Toleration(key=UNREACHABLE, operator="Exists", toleration_seconds=300)),
            [LOST],
            NOW + timedelta(seconds=200),
            id="tolerated for a time, counted from the taint",
        ),
        pytest.param(tolerating(Toleration(operator="Exists")), [LOST], None, id="for ever"),
        pytest.param(
            tolerating(Toleration(key=UNREACHABLE, operator="Exists", effect="NoSchedule")),
            [LOST],
            NOW,
            id="another effect is not meant",
        ),
        pytest.param(
            tolerating(), [Taint(key="x", effect="NoSchedule")], None, id="nobody has to leave"
        ),
    ],
)
def test_a_pod_leaves_a_tainted_node(
    pod: Pod, taints: list[Taint], leaves: datetime | None
) -> None:
    assert eviction_time(pod, taints, NOW) == leaves


def test_a_toleration_may_have_any_length() -> None:
    endless = Toleration(operator="Exists", toleration_seconds=(1 << 63) - 1)
    leaves = eviction_time(tolerating(endless), [LOST], NOW)
    assert leaves is not None
    assert leaves > NOW + timedelta(days=3000)


def test_a_pod_on_a_silent_node_is_not_ready_any_more() -> None:
    changed = unready_conditions(a_pod(), NOW)
    assert changed is not None
    assert [condition.status for condition in changed] == ["False"]
    assert unready_conditions(a_pod(ready=False), NOW) is None


def test_age_of_a_heartbeat_counts_from_its_arrival() -> None:
    beats = Heartbeats()
    lease = Lease(spec=LeaseSpec(renew_time=datetime(1999, 1, 1, tzinfo=UTC)))
    assert beats.age("n", 100) == 0
    beats.observe("n", lease, 100)
    beats.observe("n", lease, 130)
    assert beats.age("n", 130) == 30
    beats.observe("n", Lease(spec=LeaseSpec(renew_time=NOW)), 131)
    assert beats.age("n", 132) == 1


class StoredInformers:
    """The informers of nodes, leases and pods, filled by a test."""

    def __init__(self) -> None:
        self.stores = {NODES.plural: Indexer[Any]({}), LEASES.plural: Indexer[Any]({})}

    def informer(self, resource: Resource[Any], *_: object, **options: Any) -> Any:
        store = self.stores.setdefault(resource.plural, Indexer(options.get("indexes", {})))
        return SimpleNamespace(
            items=store.items,
            get=lambda namespace, name: store.get(ObjectKey(namespace or "", name)),
            by_index=store.by_index,
            index_values=store.index_values,
            add_listener=store.add_listener,
        )


def stored_node(name: str, version: str) -> Node:
    status = NodeStatus(conditions=[Condition(type="Ready", status="True")])
    return Node(metadata=ObjectMeta(name=name, resource_version=version), status=status)


def stored_lease(name: str) -> Lease:
    metadata = ObjectMeta(name=name, namespace=LEASE_NAMESPACE, resource_version="1")
    return Lease(metadata=metadata, spec=LeaseSpec(renew_time=NOW))


async def test_settled_nodes_are_checked_again_when_they_change_or_fall_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    informers, checked, clock = StoredInformers(), list[str](), [0.0]

    def record(node: Node, *, silent: bool, now: datetime) -> NodeUpdate:
        checked.append(node.metadata.name)
        return NodeUpdate()

    monkeypatch.setattr(node_lifecycle, "plan_node_update", record)
    monkeypatch.setattr(node_lifecycle, "_clock", lambda: clock[0])
    settings = SimpleNamespace(node_silence_s=40.0)
    lifecycle = node_lifecycle.NodeLifecycleController(
        SimpleNamespace(client=None, recorder=None, informers=informers, settings=settings)  # type: ignore[arg-type]
    )
    nodes, leases = informers.stores["nodes"], informers.stores["leases"]
    for name in ("a", "b", "c"):
        nodes.put(stored_node(name, "1"))
        leases.put(stored_lease(name))

    async def checks_at(seconds: float) -> list[str]:
        clock[0] = seconds
        checked.clear()
        await lifecycle.check_nodes()
        return checked

    assert await checks_at(1.0) == ["a", "b", "c"]
    assert await checks_at(2.0) == []
    nodes.put(stored_node("a", "2"))
    leases.remove(ObjectKey(LEASE_NAMESPACE, "b"))
    assert await checks_at(3.0) == ["a", "b"]
    assert await checks_at(42.0) == ["a", "c"]  # the lease of b changed when it was deleted
    assert await checks_at(44.0) == ["a", "b", "c"]
