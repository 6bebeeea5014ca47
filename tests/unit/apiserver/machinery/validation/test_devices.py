"""Rules for the kinds of Dynamic Resource Allocation."""

from typing import Any

import pytest

from gangline.local.apiserver.machinery.validation.builtin import validate_create, validate_update

GROUP = "resource.k8s.io"
Json = dict[str, Any]


def errors(kind: str, spec: Json) -> dict[str, str]:
    obj = {"metadata": {"name": "x", "namespace": "d"}, "spec": spec}
    namespaced = kind.startswith("ResourceClaim")
    if not namespaced:
        del obj["metadata"]["namespace"]
    causes = validate_create(GROUP, kind, obj, namespaced)
    return {cause.field: cause.message for cause in causes}


def request(**fields: Any) -> Json:
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu", **fields}}


def slice_of(*devices: Json, **spec: Any) -> Json:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    return {"driver": "d.io", "pool": pool, "nodeName": "n", "devices": list(devices), **spec}


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("ResourceClaim", {"requests": [{"name": "gpu"}]}, "spec.devices.requests[0]"),
        ("ResourceClaim", {"requests": [request(), request()]}, "spec.devices.requests[1].name"),
        (
            "ResourceClaim",
            {"requests": [request(allocationMode="All", count=2)]},
            "spec.devices.requests[0].exactly.count",
        ),
        (
            "ResourceClaim",
            {
                "requests": [request()],
                "constraints": [{"requests": ["nic"], "matchAttribute": "d.io/numa"}],
            },
            "spec.devices.constraints[0].requests[0]",
        ),
        (
            "ResourceClaim",
            {"requests": [request()], "constraints": [{"matchAttribute": "numa"}]},
            "spec.devices.constraints[0].matchAttribute",
        ),
        ("ResourceSlice", slice_of(allNodes=True), "spec"),
    ],
)
def test_invalid_object_is_refused_with_its_field(kind: str, spec: Json, field: str) -> None:
    assert list(errors(kind, {"devices": spec} if kind == "ResourceClaim" else spec)) == [field]


def test_valid_objects_are_accepted() -> None:
    sub = {"name": "big", "deviceClassName": "gpu"}
    alternatives = {"name": "gpu", "firstAvailable": [sub]}
    constraint = {"requests": ["gpu/big"], "distinctAttribute": "d.io/numa"}
    claim = {"devices": {"requests": [alternatives], "constraints": [constraint]}}
    assert not errors("ResourceClaim", claim)
    assert not errors("ResourceClaimTemplate", {"spec": claim})
    taint = {"key": "broken", "effect": "NoExecute"}
    assert not errors("ResourceSlice", slice_of({"name": "a", "taints": [taint]}))
    assert not errors("DeviceTaintRule", {"taint": taint, "deviceSelector": {"driver": "d.io"}})


def devices(name: str) -> Json:
    return {"devices": {"results": [{"request": "gpu", "device": name}]}}


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({"allocation": devices("0")}, {"allocation": devices("1")}, "status.allocation"),
        ({"allocation": devices("0")}, {"reservedFor": [{"uid": "u"}]}, "status.reservedFor"),
        (
            {},
            {"allocation": devices("0"), "reservedFor": [{"uid": str(n)} for n in range(257)]},
            "status.reservedFor",
        ),
        ({"allocation": devices("0")}, {}, None),
        ({}, {"allocation": devices("0"), "reservedFor": [{"uid": "u"}]}, None),
    ],
)
def test_devices_of_a_claim_are_given_once_and_taken_only_without_users(
    before: Json, after: Json, field: str | None
) -> None:
    metadata = {"name": "x", "namespace": "d"}
    old, new = ({"metadata": metadata, "spec": {}, "status": one} for one in (before, after))
    causes = validate_update(GROUP, "ResourceClaim", old, new, True, "status")
    assert [cause.field for cause in causes] == ([field] if field else [])
