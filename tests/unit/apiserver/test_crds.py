"""Definitions of custom resources: what their schemas, versions and changes must be."""

import copy
from typing import Any

import pytest

from gangline.local.apiserver.crds import crd_causes, crd_update_causes

Json = dict[str, Any]


def a_definition(properties: Json | None = None, **spec: Any) -> Json:
    schema = {"type": "object", "properties": properties or {}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": "runs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "versions": [version],
            "names": {"plural": "runs", "kind": "Run"}, **spec,
        },
        "status": {"conditions": [{"type": "Established", "status": "True"}],
                   "storedVersions": ["v1"]},
    }  # fmt: skip


def fields(definition: Json) -> list[str]:
    root = "spec.versions[0].schema.openAPIV3Schema."
    return [cause.field.removeprefix(root) for cause in crd_causes(definition)]


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({}, "type"),
        ({"type": "array", "items": {}}, "items.type"),
        ({"type": "object", "additionalProperties": {}}, "additionalProperties.type"),
        ({"type": "integer", "default": "x"}, "default"),
        ({"type": "integer", "maximum": 3, "default": 4}, "default"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}},
         "default"),
        ({"type": "string", "default": None}, "default"),
        ({"x-kubernetes-int-or-string": True}, ""),
        ({"x-kubernetes-preserve-unknown-fields": True}, ""),
        ({"type": "string", "nullable": True, "default": None}, ""),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, ""),
        ({"type": "array", "items": {"type": "integer"}, "default": [1]}, ""),
    ],
)  # fmt: skip
def test_each_property_has_a_type_and_a_default_that_is_valid(schema: Json, field: str) -> None:
    assert fields(a_definition({"p": schema})) == ([f"properties[p].{field}"] if field else [])


@pytest.mark.parametrize(
    ("conversion", "field"),
    [
        ({"strategy": "Other"}, "strategy"),
        ({"strategy": "None", "webhook": {"clientConfig": {"url": "https://a"}}}, "webhook"),
        ({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}},
         "webhook.clientConfig"),
        ({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1beta1"],
                                             "clientConfig": {"url": "https://a"}}},
         "webhook.conversionReviewVersions"),
    ],
)  # fmt: skip
def test_a_conversion_says_completely_who_converts(conversion: Json, field: str) -> None:
    assert fields(a_definition(conversion=conversion)) == [f"spec.conversion.{field}"]


def test_what_objects_are_stored_under_cannot_change() -> None:
    old = a_definition()
    for path in ("scope", "names.kind", "names.plural"):
        new = copy.deepcopy(old)
        part = new["spec"] if path == "scope" else new["spec"]["names"]
        part[path.rpartition(".")[2]] = "Cluster"
        assert [cause.field for cause in crd_update_causes(old, new)] == [f"spec.{path}"]
        assert not list(crd_update_causes({**old, "status": {}}, new))
    renamed = copy.deepcopy(old)
    renamed["spec"]["versions"][0]["name"] = "v2"
    assert [cause.field for cause in crd_update_causes(old, renamed)] == [
        "status.storedVersions[0]"
    ]


def test_rules_compare_only_what_has_an_identity() -> None:
    """The former element of a list without keys is unknown."""
    same = {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"]}
    item = {"type": "object", "properties": {"n": {"type": "string"}, "v": same}}
    plain = {"type": "array", "items": item}
    rule = "x-kubernetes-validations[0].rule"
    assert fields(a_definition({"p": plain})) == [f"properties[p].items.properties[v].{rule}"]
    assert not fields(a_definition({"p": {**plain, **keyed}}))
    assert not fields(a_definition({"p": {"type": "object", "additionalProperties": same}}))
