"""Unreadable fields of groups and queues are reported, and only these."""

import msgspec
import pytest

from gangline.api.core.node import Node
from gangline.api.volcano.scheduling import (
    CHECKPOINT_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_ANNOTATION,
    PodGroup,
    Queue,
)
from gangline.scheduler.apply.reservation_store import encode_reservation
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import node_info
from gangline.scheduler.reporting.warnings import (
    ALLOCATABLE_OVER_CAPACITY,
    USED_OVER_ALLOCATABLE,
    node_contradictions,
    unreadable_group_fields,
    unreadable_queue_fields,
)
from gangline.scheduler.types import Reservation
from unit.scheduler.builders import GPU, cluster, decide, node, pod


def group(resources: dict[str, object] | None = None, **annotations: str) -> PodGroup:
    metadata = {"name": "g", "namespace": "d", "annotations": annotations}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"minResources": resources or {}}}, PodGroup
    )


def test_readable_fields_are_not_reported() -> None:
    noted = {
        RUN_TIME_ANNOTATION: "90",
        CHECKPOINT_ANNOTATION: "2026-11-21T06:00:00Z",
        RESERVED_ANNOTATION: encode_reservation(Reservation((), created_at=5.0)),
        PREVIOUS_NODES_ANNOTATION: '{"until": "2026-11-21T06:00:00Z", "nodes": {}}',
    }
    assert not unreadable_group_fields(group({"cpu": "1", "memory": "1Gi"}, **noted))
    assert not unreadable_group_fields(group())


@pytest.mark.parametrize(
    ("name", "written", "why"),
    [
        (RUN_TIME_ANNOTATION, "soon", "not a number of seconds: 'soon'"),
        (RUN_TIME_ANNOTATION, "-5", "not a number of seconds"),
        (CHECKPOINT_ANNOTATION, "yesterday", "not a time"),
        (PREVIOUS_NODES_ANNOTATION, "{", "previous nodes"),
        (RESERVED_ANNOTATION, "[]", "reserved nodes"),
        ("sla-waiting-time", "soon", "a positive duration such as 1h30m: 'soon'"),
    ],
)
def test_unreadable_annotation_is_reported(name: str, written: str, why: str) -> None:
    message = unreadable_group_fields(group(**{name: written}))
    assert message.startswith(f"{name} ")
    assert why in message


def test_invalid_amounts_are_reported() -> None:
    message = unreadable_group_fields(group({"cpu": "many", "memory": "1Gi"}))
    assert message == "minResources of cpu is not a quantity: 'many'"
    spec = {
        "capability": {"cpu": "-1"},
        "deserved": {"cpu": "2"},
        "guarantee": {"resource": {"memory": "x" * 500}},
    }
    queue = msgspec.convert({"metadata": {"name": "q"}, "spec": spec}, Queue)
    message = unreadable_queue_fields(queue)
    assert "capability of cpu is negative: -1" in message
    assert "guarantee of memory is not a quantity" in message
    assert len(message) < 200


def node_warnings(state: SchedulerCache) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    return {
        str(name): [(each.reason, each.resources) for each in wrong]
        for name, wrong in node_contradictions(state).items()
    }


def as_written(allocatable: dict[str, str], capacity: dict[str, str]) -> Node:
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": allocatable, "capacity": capacity, "conditions": ready}
    return msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node)


def test_consistent_nodes_are_not_reported() -> None:
    full = pod("p", cpu=8, memory=32, port=80, on="n")
    assert not node_contradictions(cluster(node("n"), full, pod("q", cpu=0, port=80, on="n")))
    assert not node_info(as_written({"cpu": "4"}, {"cpu": "4"})).overreported_resources
    assert not node_info(as_written({"cpu": "4"}, {})).overreported_resources


def test_allocatable_over_capacity_is_reported() -> None:
    facts = node_info(as_written({"cpu": "9", "memory": "1Gi"}, {"cpu": "8", "memory": "1Gi"}))
    state = cluster(facts, pod("p"))
    assert node_warnings(state) == {"n": [(ALLOCATABLE_OVER_CAPACITY, ("cpu",))]}
    state.set_node(node_info(as_written({"cpu": "8"}, {"cpu": "8"})))
    assert not node_contradictions(state)


def test_requests_over_allocatable_are_reported() -> None:
    state = cluster(node("n", gpu=8), pod("p", gpu=8, on="n"), node("m", gpu=1), pod("q", gpu=1))
    assert not node_contradictions(state)
    state.set_node(node("n", gpu=6))
    assert node_warnings(state) == {"n": [(USED_OVER_ALLOCATABLE, (GPU,))]}
    assert (
        "nvidia.com/gpu 8; allocatable: nvidia.com/gpu 6"
        in node_contradictions(state)[node("n").name][0].message
    )
    assert [binding.node for binding in decide(state).bindings] == ["m"]


def test_deleted_node_is_not_reported() -> None:
    state = cluster(node_info(as_written({"cpu": "9"}, {"cpu": "8"})), pod("p", cpu=20, on="n"))
    assert len(node_warnings(state)["n"]) == 2
    state.remove_node(node("n").name)
    assert not node_contradictions(state)
