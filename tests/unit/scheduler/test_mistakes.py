"""Unreadable fields of groups and queues are reported, and only these."""

import msgspec
import pytest

from gangline.api.scheduling import (
    CHECKPOINT_ANNOTATION,
    PLACES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_ANNOTATION,
    PodGroup,
    Queue,
)
from gangline.scheduler.mistakes import mistakes_of_group, mistakes_of_queue
from gangline.scheduler.model import Promise
from gangline.scheduler.notebook import write_promise


def group(resources: dict[str, object] | None = None, **annotations: str) -> PodGroup:
    metadata = {"name": "g", "namespace": "d", "annotations": annotations}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"minResources": resources or {}}}, PodGroup
    )


def test_what_can_be_read_is_no_mistake() -> None:
    noted = {
        RUN_TIME_ANNOTATION: "90",
        CHECKPOINT_ANNOTATION: "2026-11-21T06:00:00Z",
        RESERVED_ANNOTATION: write_promise(Promise((), since=5.0)),
        PLACES_ANNOTATION: '{"until": "2026-11-21T06:00:00Z", "nodes": {}}',
    }
    assert not mistakes_of_group(group({"cpu": "1", "memory": "1Gi"}, **noted))
    assert not mistakes_of_group(group())


@pytest.mark.parametrize(
    ("name", "written", "why"),
    [
        (RUN_TIME_ANNOTATION, "soon", "not a number of seconds: 'soon'"),
        (RUN_TIME_ANNOTATION, "-5", "not a number of seconds"),
        (CHECKPOINT_ANNOTATION, "yesterday", "not a time"),
        (PLACES_ANNOTATION, "{", "previous nodes"),
        (RESERVED_ANNOTATION, "[]", "reserved nodes"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(name: str, written: str, why: str) -> None:
    said = mistakes_of_group(group(**{name: written}))
    assert said.startswith(f"{name} ")
    assert why in said


def test_amounts_that_are_none_are_named() -> None:
    said = mistakes_of_group(group({"cpu": "many", "memory": "1Gi"}))
    assert said == "minResources of cpu is not a quantity: 'many'"
    spec = {
        "capability": {"cpu": "-1"},
        "deserved": {"cpu": "2"},
        "guarantee": {"resource": {"memory": "x" * 500}},
    }
    queue = msgspec.convert({"metadata": {"name": "q"}, "spec": spec}, Queue)
    told = mistakes_of_queue(queue)
    assert "capability of cpu is negative: -1" in told
    assert "guarantee of memory is not a quantity" in told
    assert len(told) < 200
