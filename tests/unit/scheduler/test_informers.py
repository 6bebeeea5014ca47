"""The informers: what they change in the cache, and what they report."""

from typing import cast

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import RUN_TIME_FAMILY_ANNOTATION, PodGroup
from gangline.kube.client.client import ApiClient
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.settings import SchedulerSettings


def informers() -> SchedulerInformers:
    def nothing(*_: object) -> None:
        pass

    client = cast("ApiClient", None)
    return SchedulerInformers(
        client, SchedulerSettings(), nothing, nothing, lambda: 0.0, nothing, nothing
    )


def test_removed_annotation_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    found = informers()
    for name in ("a", "b"):
        annotations = {RUN_TIME_FAMILY_ANNOTATION: "x"}
        metadata = ObjectMeta(name=name, namespace="d", annotations=annotations)
        found._on_group(None, PodGroup(metadata=metadata))
    assert set(found.state.groups) == {"d/a", "d/b"}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "gangline.dev/run-time-family" in record.getMessage()
