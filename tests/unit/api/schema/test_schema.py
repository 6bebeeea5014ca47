"""Schemas generated from structs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

from gangline.api import crd, resources
from gangline.api.core.core import Service
from gangline.api.core.pod import Pod
from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.meta.field_doc import IntOrString, Quantity, ResourceList, doc
from gangline.api.meta.objects import Wire
from gangline.api.schema.openapi import openapi_schema, structural_schema
from gangline.api.volcano.scheduling import Queue

ROOT = Path(__file__).parents[4]
ANNOTATION_LIMIT = 262_144


class Part(Wire):
    """A part of a thing."""

    key: Annotated[str, doc("Which part.", required=True)] = ""
    side: Annotated[str, doc("Which side.", values=("left", "right"))] = ""


class Thing(Wire):
    """A thing.

    Further text.
    """

    parts: Annotated[list[Part], doc("Its parts.", keys=("key", "side"))] = []  # noqa: RUF012
    size: Annotated[int | None, doc("How large.", minimum=1)] = None
    port: Annotated[IntOrString | None, doc("Number or name.")] = None
    amount: Annotated[Quantity | None, doc("How much.")] = None
    room: Annotated[ResourceList | None, doc("How much of each.")] = None


def every(schema):
    """All schemas in a schema."""
    yield schema
    for child in schema.get("properties", {}).values():
        yield from every(child)
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from every(schema[word])


def field(schema, *path):
    for name in path:
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
        extra = schema.get("additionalProperties")
        schema = extra if isinstance(extra, dict) and "properties" in extra else schema
    return schema


def test_schema_of_a_struct_has_descriptions_limits_and_list_keys():
    amount = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    assert structural_schema(Pod)["properties"]["metadata"] == {"type": "object"}
    schema = openapi_schema(Thing)
    assert schema["description"] == "A thing."
    assert schema["properties"]["size"] == {
        "type": "integer",
        "format": "int32",
        "minimum": 1,
        "description": "How large.",
    }
    assert schema["properties"]["port"] == {**amount, "description": "Number or name."}
    parts = schema["properties"]["parts"]
    assert parts["x-kubernetes-list-map-keys"] == ["key", "side"]
    assert parts["x-kubernetes-patch-merge-key"] == "key"
    assert parts["items"]["required"] == ["key", "side"], "a list key is there"
    assert schema["properties"]["room"]["additionalProperties"] == {
        "oneOf": [{"type": "string"}, {"type": "number"}]
    }


@pytest.mark.parametrize("resource", resources.CUSTOM_RESOURCES, ids=lambda resource: resource.kind)
def test_a_structural_schema_is_one(resource):
    for schema in every(structural_schema(resource.type)):
        assert "type" in schema or "x-kubernetes-int-or-string" in schema
        assert not {"$ref", "x-kubernetes-patch-merge-key", "x-kubernetes-patch-strategy"} & set(
            schema
        )
        assert not ("properties" in schema and "additionalProperties" in schema)
        for key in schema.get("x-kubernetes-list-map-keys", []):
            items = schema["items"]
            assert key in items.get("required", ()) or "default" in items["properties"][key]


@pytest.mark.parametrize(
    "resource",
    [*resources.BUILT_IN_RESOURCES, *resources.CUSTOM_RESOURCES],
    ids=lambda resource: resource.plural,
)
def test_every_field_is_described(resource):
    named = {"apiVersion", "kind", "metadata"}
    for schema in every(openapi_schema(resource.type)):
        for name, child in schema.get("properties", {}).items():
            assert child.get("description") or name in named, name


def test_a_pod_template_can_be_explained_down_to_a_containers_resources():
    path = ("spec", "pytorchReplicaSpecs", "template", "spec", "containers", "resources", "limits")
    assert "killed" in field(structural_schema(PyTorchJob), *path)["description"]


def test_a_pod_template_has_no_ephemeral_containers_and_a_pod_has():
    path = ("spec", "pytorchReplicaSpecs", "template", "spec")
    assert "ephemeralContainers" not in field(structural_schema(PyTorchJob), *path)["properties"]
    assert "ephemeralContainers" in field(openapi_schema(Pod), "spec")["properties"]


def test_volumes_and_ports_are_merged_as_kubernetes_merges_them():
    volumes = openapi_schema(Pod)["properties"]["spec"]["properties"]["volumes"]
    assert volumes["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    ports = openapi_schema(Service)["properties"]["spec"]["properties"]["ports"]
    assert ports["x-kubernetes-patch-merge-key"] == "port"
    assert ports["x-kubernetes-list-map-keys"] == ["port", "protocol"]


@pytest.mark.parametrize(
    "manifest", crd.crd_manifests().values(), ids=lambda m: m["metadata"]["name"]
)
def test_a_definition_fits_into_the_annotation_of_client_side_apply(manifest):
    assert len(json.dumps(manifest, separators=(",", ":"))) < ANNOTATION_LIMIT * 3 / 4


def test_the_files_in_deploy_are_not_stale():
    command = [sys.executable, str(ROOT / "tools" / "generate_deploy.py"), "--check"]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_definitions_have_no_empty_maps():
    """Kubernetes drops them, and an apply of the file would always find a difference."""

    def empty(value, path):
        if isinstance(value, dict):
            for key, child in value.items():
                yield from [f"{path}.{key}"] if child in ({}, []) else empty(child, f"{path}.{key}")
        elif isinstance(value, list):
            for index, child in enumerate(value):
                yield from empty(child, f"{path}[{index}]")

    places = [place for name, text in crd.crd_manifests().items() for place in empty(text, name)]
    # A status subresource is switched on by an empty map, and a default may be one.
    assert [e for e in places if not e.endswith((".subresources.status", ".default"))] == []


@pytest.mark.parametrize("amount", ["x", "5O", "", "1 Gi", "8GB", "1e"])
def test_a_definition_refuses_limits_of_queues_that_are_no_quantities(amount):
    """A limit that cannot be read is no limit, and no webhook checks queues."""
    spec = structural_schema(Queue)["properties"]["spec"]["properties"]
    pattern = spec["capability"]["additionalProperties"]["pattern"]
    assert re.search(pattern, amount) is None
    for good in ("2", "500m", "1.5Gi", ".5", "1e3", "+4", "1E-3"):
        assert re.search(pattern, good), good
    assert "pattern" in spec["deserved"]["additionalProperties"]
