"""The informers: what they change in the cache, and what they report."""

from typing import cast

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import (
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    PodGroup,
)
from gangline.kube.client.client import ApiClient
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GroupKey
from unit.scheduler.builders import RecordingListener


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
