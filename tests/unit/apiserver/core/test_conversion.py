"""Conversion between the versions of Event and HorizontalPodAutoscaler."""

from dataclasses import replace
from typing import Any

import pytest

from gangline.local.apiserver.core.conversion import from_stored, to_stored
from gangline.local.apiserver.core.registry import ServedKind

EVENT = ServedKind("events.k8s.io", "v1", "Event", "events", storage_version="core")
SCALER = ServedKind(
    "autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers",
    storage_version="v2",
)  # fmt: skip


def test_events_rename_their_fields():
    new = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "regarding": {"name": "p"}, "note": "it runs", "reason": "Started",
        "reportingController": "kubelet", "deprecatedCount": 2,
    }  # fmt: skip
    old = to_stored(EVENT, new)
    assert old["apiVersion"] == "v1"
    assert (old["involvedObject"], old["message"], old["count"]) == ({"name": "p"}, "it runs", 2)
    assert from_stored(EVENT, old) == new


def test_autoscalers_keep_the_share_of_the_processor():
    old = {
        "apiVersion": "autoscaling/v1", "kind": SCALER.kind, "metadata": {"name": "a"},
        "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
    }  # fmt: skip
    new = to_stored(SCALER, old)
    assert new["apiVersion"] == "autoscaling/v2"
    assert new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 50
    assert from_stored(SCALER, new) == old


@pytest.mark.parametrize("junk", [None, 1, "x", [1], [{"resource": 3}], [{"resource": {}}]])
def test_metrics_of_any_shape_can_be_shown(junk: Any):
    stored = {"apiVersion": "autoscaling/v2", "spec": {"metrics": junk}}
    assert from_stored(SCALER, stored)["spec"] == {}


def test_objects_get_defaults_that_their_definition_had_not_when_they_were_stored():
    policy = {"type": "string", "default": "OnFailure"}
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"p": policy}}},
    }
    run = ServedKind("g", "v2", "Run", "runs", custom=True, schema_source=lambda: schema,
                     was_changed=True, storage_version="v2")  # fmt: skip
    stored = {"apiVersion": "g/v1", "spec": {}}
    assert from_stored(run, stored) == {"apiVersion": "g/v2", "spec": {"p": "OnFailure"}}
    assert stored == {"apiVersion": "g/v1", "spec": {}}
    assert from_stored(replace(run, was_changed=False), stored) is stored
