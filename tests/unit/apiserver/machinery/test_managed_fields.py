"""Managed fields after creations, updates and patches."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline.local.apiserver.machinery.managed_fields import (
    decode_fields,
    managed_fields,
    manager_name,
    track_update,
)
from gangline.local.apiserver.machinery.schema.structural import StructuralSchema
from gangline.local.apiserver.machinery.server_side_apply import server_side_apply

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
CONTAINERS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": {"type": "object", "properties": {"name": {}, "image": {}}},
}
SCHEMA = StructuralSchema(
    {
        "type": "object",
        "properties": {
            "data": {"type": "object", "additionalProperties": {"type": "string"}},
            "spec": {"type": "object", "properties": {"containers": CONTAINERS}},
        },
    }
).schema


def an_object(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, **copy.deepcopy(fields)}


def applied_by(manager: str, live: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    return server_side_apply(live, an_object(**fields), SCHEMA, manager=manager, now=NOW)


def updated_by(manager: str, old: dict[str, Any], **fields: Any) -> dict[str, Any]:
    new = {**copy.deepcopy(old), **copy.deepcopy(fields)}
    track_update(old, new, SCHEMA, manager=manager, now=NOW)
    return new


def owners(obj: dict[str, Any]) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in managed_fields(obj)}


def test_our_components_are_tracked_only_where_somebody_applies() -> None:
    new = an_object(data={"a": "1"})
    track_update(None, new, SCHEMA, manager="gangline-operator", now=NOW)
    assert managed_fields(new) == []
    live = updated_by(
        "gangline-operator", applied_by("one", None, data={"a": "1"}), data={"a": "2"}
    )
    assert "gangline-operator" in owners(live)


def test_an_untracked_update_keeps_the_entries_that_are_there() -> None:
    live = updated_by("kubectl-create", an_object(), data={"a": "1"})
    new = an_object(data={"a": "2"})
    track_update(live, new, SCHEMA, manager="gangline-operator", now=NOW)
    assert managed_fields(new) == managed_fields(live)


def test_a_creation_is_owned_by_its_creator_with_the_parents() -> None:
    new = an_object(spec={"containers": [{"name": "a", "image": "i"}]})
    track_update(None, new, SCHEMA, manager="kubectl-create", now=NOW)
    item = {".": {}, "f:name": {}, "f:image": {}}
    expected = {"f:spec": {".": {}, "f:containers": {".": {}, 'k:{"name":"a"}': item}}}
    assert owners(new) == {"kubectl-create": expected}


def test_a_creation_in_another_version_than_that_of_storage_is_recorded() -> None:
    new = an_object(data={"a": "1"})
    track_update(None, new, SCHEMA, manager="gangline", now=NOW, api_version="g/v2")
    (entry,) = managed_fields(new)
    assert entry["apiVersion"] == "g/v2"
    changed = {**copy.deepcopy(new), "data": {"a": "2"}}
    track_update(new, changed, SCHEMA, manager="gangline", now=NOW, api_version="g/v2")
    assert managed_fields(changed) == [entry], "an update of our own component is not"


def test_one_manager_has_an_entry_for_each_version() -> None:
    new = an_object(data={"a": "1"})
    track_update(None, new, SCHEMA, manager="kubectl", now=NOW, api_version="g/v2")
    changed = {**copy.deepcopy(new), "data": {"a": "2"}}
    later = NOW + timedelta(seconds=5)
    track_update(new, changed, SCHEMA, manager="kubectl", now=later)
    versions = {entry["apiVersion"]: entry["time"] for entry in managed_fields(changed)}
    assert set(versions) == {"g/v2", new["apiVersion"]}
    assert versions["g/v2"] < versions[new["apiVersion"]]


def test_a_client_can_reset_managed_fields() -> None:
    live = applied_by("one", None, data={"a": "1"})
    new = copy.deepcopy(live)
    new["metadata"]["managedFields"] = [{}]
    track_update(live, new, SCHEMA, manager="kubectl", now=NOW)
    assert managed_fields(new) == []


def test_managers_that_update_are_few() -> None:
    live = an_object(data={})
    for number in range(30):
        later = NOW + timedelta(minutes=number)
        new = copy.deepcopy(live)
        new["data"][f"k{number}"] = "v"
        track_update(live, new, SCHEMA, manager=f"m{number}", now=later)
        live = new
    assert len(managed_fields(live)) == 10
    found = set().union(*(decode_fields(entry["fieldsV1"]) for entry in managed_fields(live)))
    assert {("f:data", f"f:k{number}") for number in range(30)} <= found


@pytest.mark.parametrize(
    ("agent", "name", "manager"),
    [
        ("kubectl/v1.31.0 (linux/amd64)", "", "kubectl"),
        ("kubectl/v1.31.0", "kubectl-edit", "kubectl-edit"),
        ("", "", "unknown"),
        ("x" * 500, "", "x" * 128),
    ],
)
def test_a_manager_is_named_by_itself_or_by_its_program(
    agent: str, name: str, manager: str
) -> None:
    assert manager_name(agent, name) == manager


@pytest.mark.parametrize("tree", [None, 7, {"f:a": 7}, {"odd": {}}, {"f:a": {"f:b": None}}])
def test_damaged_fields_are_passed_over(tree: Any) -> None:
    assert decode_fields(tree) <= {("f:a",), ("f:a", "f:b")}
