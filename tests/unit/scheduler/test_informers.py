"""The informers: what they change in the cache, and what they report."""

from typing import cast

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import (
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_FAMILY_ANNOTATION,
    PodGroup,
)
from gangline.kube.client.client import ApiClient
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types.types import GroupKey
from unit.scheduler.builders import RecordingListener


def test_removed_annotation_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    listener = RecordingListener()
    found = SchedulerInformers(cast("ApiClient", None), SchedulerSettings(), listener)
    for name in ("a", "b"):
        annotations = {RUN_TIME_FAMILY_ANNOTATION: "x"}
        metadata = ObjectMeta(name=name, namespace="d", annotations=annotations)
        found._on_group(None, PodGroup(metadata=metadata))
    assert set(found.state.groups) == {"d/a", "d/b"}
    assert (listener.groups, listener.changes) == (["d/a", "d/b"], 2)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "gangline.dev/run-time-family" in record.getMessage()


def test_stored_reservation_is_found_and_expiry_of_previous_nodes_is_awaited() -> None:
    listener = RecordingListener()
    client = cast("ApiClient", None)
    found = SchedulerInformers(client, SchedulerSettings(), listener, lambda: 0.0)
    annotations = {
        RESERVED_ANNOTATION: '{"since": "1970-01-01T00:00:05Z", "nodes": {"g-0": "a"}}',
        PREVIOUS_NODES_ANNOTATION: '{"until": "1970-01-01T00:01:00Z", "nodes": {}}',
    }
    metadata = ObjectMeta(name="g", namespace="d", annotations=annotations)
    found._on_group(None, PodGroup(metadata=metadata))
    assert listener.reservations == found.state.reservations
    assert listener.reservations[GroupKey("d/g")].nodes == (("d/g-0", "a"),)
    assert listener.delays == [60.0]
