"""OpenAPI documents in JSON and protobuf: the parts that kubectl uses."""

from collections.abc import Iterator
from typing import Any

import pytest

from gangline.local.apiserver.machinery.openapi import (
    OpenAPIEntry,
    openapi_v2,
    openapi_v3,
    openapi_v3_index,
)

SCHEMA = {
    "type": "object",
    "description": "A thing.",
    "properties": {
        "spec": {
            "type": "object",
            "description": "What is expected.",
            "required": ["port"],
            "properties": {
                "port": {"x-kubernetes-int-or-string": True, "description": "Where."},
                "amount": {"type": "string", "format": "quantity"},
                "note": {"type": "string", "nullable": True, "enum": ["a", None]},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "anything": {"x-kubernetes-preserve-unknown-fields": True},
                "either": {"type": "object", "oneOf": [{"required": ["a"]}]},
                "items": {
                    "type": "array",
                    "x-kubernetes-patch-strategy": "merge",
                    "x-kubernetes-patch-merge-key": "name",
                    "items": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
        }
    },
}
ENTRIES = [
    OpenAPIEntry("", "v1", "Pod", "pods", True, SCHEMA),
    OpenAPIEntry("", "v1", "Node", "nodes", False, SCHEMA),
    OpenAPIEntry("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, SCHEMA),
    OpenAPIEntry("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs", True, SCHEMA, custom=True),
]
V2 = openapi_v2(ENTRIES, title="Gangline", version="v1.31.0")


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from schemas(child)
    elif isinstance(value, list):
        for child in value:
            yield from schemas(child)


def kind_of(definition: dict[str, Any]) -> dict[str, str]:
    (found,) = definition["x-kubernetes-group-version-kind"]
    return dict(found)


@pytest.mark.parametrize(
    ("name", "group", "kind"),
    [
        ("io.k8s.api.core.v1.Pod", "", "Pod"),
        ("io.k8s.api.scheduling.v1.PriorityClass", "scheduling.k8s.io", "PriorityClass"),
        ("org.kubeflow.v1.PyTorchJob", "kubeflow.org", "PyTorchJob"),
    ],
)
def test_each_kind_has_a_definition_that_says_which_it_is(name: str, group: str, kind: str) -> None:
    assert kind_of(V2["definitions"][name]) == {"group": group, "version": "v1", "kind": kind}


def test_every_reference_leads_somewhere() -> None:
    found = {each["$ref"] for each in schemas(V2) if isinstance(each.get("$ref"), str)}
    assert found
    assert all(each.removeprefix("#/definitions/") in V2["definitions"] for each in found)
    document = openapi_v3(ENTRIES, "", "v1")
    assert document is not None
    known = document["components"]["schemas"]
    found = {each["$ref"] for each in schemas(document) if isinstance(each.get("$ref"), str)}
    assert all(each.removeprefix("#/components/schemas/") in known for each in found)


def test_version_two_says_only_what_it_can() -> None:
    spec = V2["definitions"]["io.k8s.api.core.v1.Pod"]["properties"]["spec"]["properties"]
    assert spec["port"] == {"type": "string", "format": "int-or-string", "description": "Where."}
    assert spec["amount"] == {"type": "string"}
    assert spec["note"] == {"type": "string"}
    assert spec["free"]["type"] == "object"
    assert "type" not in spec["anything"]
    assert spec["either"] == {"type": "object"}
    assert spec["items"]["x-kubernetes-patch-merge-key"] == "name"


def test_version_three_keeps_alternatives() -> None:
    document = openapi_v3(ENTRIES, "", "v1")
    assert document is not None
    pod = document["components"]["schemas"]["io.k8s.api.core.v1.Pod"]
    spec = pod["properties"]["spec"]["properties"]
    assert spec["port"]["oneOf"] == [{"type": "integer"}, {"type": "string"}]
    assert spec["either"]["oneOf"] == [{"required": ["a"]}]
    assert pod["properties"]["metadata"]["allOf"]


@pytest.mark.parametrize(
    ("path", "verb"),
    [
        ("/api/v1/namespaces/{namespace}/pods", "post"),
        ("/api/v1/namespaces/{namespace}/pods/{name}", "patch"),
        ("/api/v1/nodes/{name}", "put"),
        ("/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}", "patch"),
    ],
)
def test_writes_say_that_they_can_be_tried_and_validated(path: str, verb: str) -> None:
    names = {parameter["name"] for parameter in V2["paths"][path][verb]["parameters"]}
    assert {"dryRun", "fieldValidation"} <= names


def test_paths_say_which_kind_is_behind_them() -> None:
    document = openapi_v3(ENTRIES, "kubeflow.org", "v1")
    assert document is not None
    listed = document["paths"]["/apis/kubeflow.org/v1/pytorchjobs"]["get"]
    identity = {"group": "kubeflow.org", "version": "v1", "kind": "PyTorchJob"}
    assert listed["x-kubernetes-group-version-kind"] == identity


def test_custom_kinds_take_no_strategic_patches() -> None:
    path = "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}"
    assert not any("strategic" in each for each in V2["paths"][path]["patch"]["consumes"])


def test_the_index_leads_to_documents_whose_address_changes_with_them() -> None:
    index = openapi_v3_index(ENTRIES)["paths"]
    assert sorted(index) == ["api/v1", "apis/kubeflow.org/v1", "apis/scheduling.k8s.io/v1"]
    other = OpenAPIEntry("", "v1", "Node", "nodes", False, {"type": "object"})
    changed = openapi_v3_index([*ENTRIES, other])["paths"]
    assert changed["api/v1"] != index["api/v1"]
    assert changed["apis/kubeflow.org/v1"] == index["apis/kubeflow.org/v1"]


def test_there_is_no_document_of_what_is_not_served() -> None:
    assert openapi_v3(ENTRIES, "odd.io", "v1") is None
