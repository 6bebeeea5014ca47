"""Conversion of objects from an old API server that writes null for empty lists."""

import json

import msgspec
import pytest

from gangline.kube.client.decoding import decode_object, decode_page
from gangline.scheduler.cache.convert import pod_info
from gangline.scheduler.cache.convert_storage import attach_limits
from gangline.scheduler.types import wire

STRUCTS = [
    each
    for each in vars(wire).values()
    if isinstance(each, type) and issubclass(each, wire.Wire) and each.__module__ == wire.__name__
]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_a_field_that_is_null_was_not_given(struct: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(struct)]
    assert decode_object(struct, json.dumps(dict.fromkeys(names)).encode()) == struct()


def test_a_node_without_storage_drivers_has_no_limits() -> None:
    drivers = '{"drivers": [{"name": "d", "allocatable": {"count": 3}, "topologyKeys": null}]}'
    named = '{"metadata": {"name": "%s"}, "spec": %s}'
    items = ", ".join((named % ("bare", '{"drivers": null}'), named % ("full", drivers)))
    _, found, malformed = decode_page(wire.CSINode, f'{{"items": [{items}]}}'.encode())
    assert not malformed
    assert [(each.metadata.name, attach_limits(each)) for each in found] == [
        ("bare", {}),
        ("full", {"d": 3}),
    ]


def test_a_pod_with_nulls_is_read() -> None:
    pod = decode_object(
        wire.LeanPod,
        b'{"metadata": {"name": "p", "namespace": "d", "labels": null, "ownerReferences": null},'
        b' "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}, "limits": null},'
        b' "ports": null}], "tolerations": null, "volumes": null, "nodeSelector": null},'
        b' "status": {"conditions": null, "containerStatuses": null}}',
    )
    facts = pod_info(wire.slim_pod(pod), {}, frozenset({"gangline"}))
    assert dict(facts.shape.request)["cpu"] == 1000
