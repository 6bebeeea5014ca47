"""Unreadable fields of groups and queues are reported, and only these."""

import msgspec
import pytest

from gangline.api.volcano.scheduling import (
    CHECKPOINT_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_ANNOTATION,
    PodGroup,
    Queue,
)
from gangline.scheduler.apply.reservation_store import encode_reservation
from gangline.scheduler.reporting.warnings import unreadable_group_fields, unreadable_queue_fields
from gangline.scheduler.types.types import Reservation


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
