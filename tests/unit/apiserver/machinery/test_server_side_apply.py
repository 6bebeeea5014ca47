"""Server-side apply and the ownership of fields: examples of KEP-555, and properties."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery.managed_fields import (
    decode_fields,
    diff_fields,
    encode_fields,
    field_tree,
    managed_fields,
    owned_fields,
    track_update,
)
from gangline.local.apiserver.machinery.schema.structural import StructuralSchema
from gangline.local.apiserver.machinery.server_side_apply import (
    ApplyConflict,
    ApplyError,
    server_side_apply,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
CONTAINER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "image": {"type": "string"},
        "probe": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "scheme": {"type": "string"}},
        },
        "args": {"type": "array", "items": {"type": "string"}},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
            "items": {
                "type": "object",
                "properties": {
                    "containerPort": {"type": "integer"},
                    "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"},
                },
            },
        },
    },
}
SCHEMA = StructuralSchema(
    {
        "type": "object",
        "properties": {
            "data": TEXTS,
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer"},
                    "set": {"type": "array", "x-kubernetes-list-type": "set"},
                    "atom": {"type": "object", "x-kubernetes-map-type": "atomic"},
                    "containers": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": CONTAINER,
                    },
                },
            },
        },
    }
).schema


def an_object(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x"}, **copy.deepcopy(fields)}


def applied_by(
    manager: str,
    live: dict[str, Any] | None,
    *,
    force: bool = False,
    now: datetime = NOW,
    subresource: str = "",
    **fields: Any,
) -> dict[str, Any]:
    before = copy.deepcopy(live)
    configuration = an_object(**fields)
    result = server_side_apply(
        live,
        configuration,
        SCHEMA,
        manager=manager,
        now=now,
        force=force,
        subresource=subresource,
    )
    assert live == before
    return result


def updated_by(manager: str, old: dict[str, Any], **fields: Any) -> dict[str, Any]:
    new = {**copy.deepcopy(old), **copy.deepcopy(fields)}
    track_update(old, new, SCHEMA, manager=manager, now=NOW)
    return new


def owners(obj: dict[str, Any]) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in managed_fields(obj)}


def test_an_applier_owns_what_it_says_and_nothing_else() -> None:
    result = applied_by("one", None, data={"a": "1"}, spec={"replicas": 1})
    assert result["data"] == {"a": "1"}
    assert managed_fields(result) == [
        {
            "manager": "one",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": "2026-11-20T12:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}, "f:spec": {"f:replicas": {}}},
        }
    ]


def test_applying_the_same_again_changes_nothing_not_even_the_time() -> None:
    once = applied_by("one", None, data={"a": "1"})
    again = applied_by("one", once, data={"a": "1"}, now=NOW + timedelta(hours=1))
    assert again == once


def test_a_field_of_another_manager_is_not_changed_unless_forced() -> None:
    live = applied_by("one", None, data={"a": "1"}, spec={"replicas": 1})
    with pytest.raises(ApplyConflict) as caught:
        applied_by("two", live, data={"a": "2"})
    assert caught.value.message == ('Apply failed with 1 conflict: conflict with "one": .data.a')
    (cause,) = caught.value.causes
    assert (cause.reason, cause.field) == ("FieldManagerConflict", ".data.a")
    forced = applied_by("two", live, force=True, data={"a": "2"})
    assert forced["data"] == {"a": "2"}
    assert owners(forced) == {"one": {"f:spec": {"f:replicas": {}}}, "two": {"f:data": {"f:a": {}}}}


def test_several_conflicts_are_listed_by_manager() -> None:
    live = applied_by("one", None, data={"a": "1"})
    live = updated_by("kubectl", live, data={"a": "1", "b": "1", "c": "1"})
    with pytest.raises(ApplyConflict) as caught:
        applied_by("two", live, data={"a": "2", "b": "2", "c": "2"})
    assert caught.value.message == (
        "Apply failed with 3 conflicts: "
        'conflicts with "kubectl" using v1 at 2026-11-20T12:00:00Z:\n- .data.b\n- .data.c\n'
        'conflicts with "one":\n- .data.a'
    )


def test_managers_with_equal_values_share_ownership() -> None:
    live = applied_by("two", applied_by("one", None, data={"a": "1"}), data={"a": "1"})
    assert owners(live) == {"one": {"f:data": {"f:a": {}}}, "two": {"f:data": {"f:a": {}}}}
    # One manager drops the field; the other still owns it.
    assert applied_by("one", live, spec={"replicas": 1})["data"] == {"a": "1"}


def test_field_without_applier_is_removed() -> None:
    live = applied_by("one", None, data={"a": "1", "b": "2"}, spec={"replicas": 1})
    result = applied_by("one", live, data={"a": "1"})
    assert result == applied_by("one", None, data={"a": "1"})


def test_defaults_end_with_the_named_field_that_nobody_owns_any_longer() -> None:
    probe = {"path": "/healthz"}
    live = applied_by("a", None, spec={"containers": [{"name": "c", "probe": probe}]})
    live["spec"]["containers"][0]["probe"]["scheme"] = "HTTP"
    result = applied_by("a", live, spec={"containers": [{"name": "c"}]})
    assert result["spec"]["containers"] == [{"name": "c"}]


def test_what_an_update_added_stays_when_the_applier_does_not_speak_of_it() -> None:
    live = applied_by("one", None, data={"a": "1"})
    live = updated_by("kubectl-edit", live, data={"a": "1", "b": "2"})
    assert applied_by("one", live, data={"a": "1"})["data"] == {"a": "1", "b": "2"}


def test_an_update_takes_over_what_it_changes() -> None:
    live = updated_by("kubectl-edit", applied_by("one", None, data={"a": "1"}), data={"a": "2"})
    assert owners(live) == {"kubectl-edit": {"f:data": {"f:a": {}}}}
    with pytest.raises(ApplyConflict):
        applied_by("one", live, data={"a": "1"})


def test_a_removal_by_an_update_leaves_no_owner() -> None:
    live = updated_by("kubectl-edit", applied_by("one", None, data={"a": "1"}), data={})
    assert "f:data" not in owners(live).get("one", {})


def test_items_of_keyed_lists_have_owners_of_their_own() -> None:
    web = {"name": "web", "image": "web:1", "ports": [{"containerPort": 80}]}
    live = applied_by("one", None, spec={"containers": [web]})
    live = applied_by("two", live, spec={"containers": [{"name": "log", "image": "log:1"}]})
    assert [each["name"] for each in live["spec"]["containers"]] == ["web", "log"]
    assert owners(live)["one"]["f:spec"]["f:containers"] == {
        'k:{"name":"web"}': {
            ".": {},
            "f:name": {},
            "f:image": {},
            "f:ports": {
                'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}
            },
        }
    }
    result = applied_by("one", live, spec={"replicas": 1})
    assert [each["name"] for each in result["spec"]["containers"]] == ["log"]


def test_an_item_stays_with_its_keys_while_somebody_owns_something_in_it() -> None:
    live = applied_by("one", None, spec={"containers": [{"name": "web", "image": "web:1"}]})
    edited = [{"name": "web", "image": "web:1", "args": ["-v"]}]
    live = updated_by("kubectl-edit", live, spec={"containers": edited})
    result = applied_by("one", live, spec={"replicas": 1})
    assert result["spec"]["containers"] == [{"name": "web", "args": ["-v"]}]


def test_lists_without_keys_and_atomic_maps_are_owned_as_one_unit() -> None:
    def a_spec(value: str) -> dict[str, Any]:
        return {"atom": {value: 1}, "containers": [{"name": "w", "args": [value]}]}

    live = applied_by("one", None, spec=a_spec("a"))
    with pytest.raises(ApplyConflict) as caught:
        applied_by("two", live, spec=a_spec("b"))
    assert [cause.field for cause in caught.value.causes] == [
        ".spec.atom",
        '.spec.containers[name="w"].args',
    ]


def test_members_of_sets_are_owned_one_by_one() -> None:
    live = applied_by("two", applied_by("one", None, spec={"set": ["a"]}), spec={"set": ["b"]})
    assert live["spec"]["set"] == ["a", "b"]
    assert applied_by("one", live, data={"x": "y"})["spec"]["set"] == ["b"]


def test_the_applied_order_prevails_among_items_that_both_know() -> None:
    live = applied_by("one", None, spec={"set": ["a", "b", "c"]})
    live = updated_by("kubectl", live, spec={"set": ["z", "a", "b", "c"]})
    result = applied_by("one", live, spec={"set": ["c", "n", "b", "a"]})
    assert result["spec"]["set"] == ["z", "c", "n", "b", "a"]


def test_the_first_apply_to_an_untracked_object_meets_its_unknown_writers() -> None:
    live = an_object(data={"a": "1", "b": "1"})
    with pytest.raises(ApplyConflict, match="before-first-apply"):
        applied_by("one", live, data={"a": "2"})
    agreed = applied_by("one", live, data={"a": "1"})
    assert owners(agreed)["before-first-apply"] == {"f:data": {"f:a": {}, "f:b": {}}}
    assert agreed["data"] == {"a": "1", "b": "1"}


def test_kubectl_may_change_what_it_applied_itself_before_it_was_server_side() -> None:
    last = '{"apiVersion":"v1","kind":"X","metadata":{"name":"x"},"data":{"a":"1"}}'
    live = an_object(data={"a": "1", "b": "1"})
    live["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": last}
    assert applied_by("kubectl", live, data={"a": "2"})["data"] == {"a": "2", "b": "1"}
    with pytest.raises(ApplyConflict):
        applied_by("kubectl", live, data={"b": "2"})
    with pytest.raises(ApplyConflict):
        applied_by("other", live, data={"a": "2"})


def test_the_same_manager_has_an_entry_for_each_subresource() -> None:
    live = applied_by("one", None, data={"a": "1"})
    live = applied_by("one", live, subresource="status", status={"x": 1})
    assert [entry.get("subresource") for entry in managed_fields(live)] == [None, "status"]
    assert live["data"] == {"a": "1"}


def test_identity_and_server_fields_have_no_owner() -> None:
    configuration = an_object(data={"a": "1"})
    configuration["metadata"] |= {"namespace": "n", "uid": "u", "labels": {"l": "1"}}
    result = server_side_apply(None, configuration, SCHEMA, manager="one", now=NOW)
    assert owners(result) == {
        "one": {"f:data": {"f:a": {}}, "f:metadata": {"f:labels": {"f:l": {}}}}
    }


def test_managed_fields_cannot_be_applied() -> None:
    configuration = an_object()
    configuration["metadata"]["managedFields"] = [{"manager": "x"}]
    with pytest.raises(ApplyError):
        server_side_apply(None, configuration, SCHEMA, manager="one", now=NOW)


@pytest.mark.parametrize(
    "containers", [[{"name": "a"}, {"name": "a"}], [{"image": "a"}], ["a"]], ids=str
)
def test_items_with_equal_keys_are_refused(containers: list[Any]) -> None:
    with pytest.raises(ApplyError, match=r"\.spec\.containers"):
        applied_by("one", None, spec={"containers": containers})


KEYS = st.sampled_from("abc")
CONTAINERS = st.dictionaries(
    KEYS,
    st.fixed_dictionaries({}, optional={"image": KEYS, "args": st.lists(KEYS, max_size=2)}),
).map(lambda found: [{"name": name, **rest} for name, rest in found.items()])
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "set": st.lists(KEYS, unique=True),
        "atom": st.dictionaries(KEYS, KEYS),
        "containers": CONTAINERS,
    },
)
FIELDS = st.fixed_dictionaries({}, optional={"data": st.dictionaries(KEYS, KEYS), "spec": SPECS})


PARENTS = {"f:data", "f:spec", "f:set", "f:containers"}
IDENTITY = {("f:apiVersion",), ("f:kind",), ("f:metadata", "f:name")}


@given(FIELDS)
def test_fields_survive_encoding(fields: dict[str, Any]) -> None:
    found = owned_fields(an_object(**fields), SCHEMA)
    assert decode_fields(encode_fields(found)) == found


@given(FIELDS)
def test_the_fast_way_to_own_a_creation_finds_the_same_fields(fields: dict[str, Any]) -> None:
    obj = an_object(**fields)
    tree = field_tree(obj, SCHEMA)
    tree.pop(".", None)
    assert tree == encode_fields(diff_fields({}, obj, SCHEMA).changed)


@given(FIELDS, FIELDS)
def test_applying_twice_is_applying_once(before: dict[str, Any], fields: dict[str, Any]) -> None:
    live = applied_by("other", None, **before)
    once = applied_by("one", live, force=True, **fields)
    assert applied_by("one", once, now=NOW + timedelta(1), **fields) == once


@given(FIELDS, FIELDS)
def test_after_a_forced_apply_the_configuration_is_in_the_object(
    before: dict[str, Any], fields: dict[str, Any]
) -> None:
    result = applied_by("one", applied_by("other", None, **before), force=True, **fields)
    assert applied_by("one", result, **fields) == result
    assert owned_fields(an_object(**fields), SCHEMA) <= {
        path[:length]
        for path in owned_fields(result, SCHEMA)
        for length in range(len(path) + 1)
    }  # fmt: skip


@given(FIELDS)
def test_fields_of_single_applier_are_removed_when_it_applies_nothing(
    fields: dict[str, Any],
) -> None:
    live = applied_by("one", None, **fields)
    assert {k: v for k, v in applied_by("one", live).items() if k != "spec" or v} == an_object()


@given(st.dictionaries(KEYS, KEYS), CONTAINERS)
def test_order_of_managers_of_different_fields_does_not_matter(
    texts: dict[str, str], containers: list[dict[str, Any]]
) -> None:
    one, two = {"data": texts}, {"spec": {"containers": containers, "replicas": 1}}
    forth = applied_by("two", applied_by("one", None, **one), **two)
    back = applied_by("one", applied_by("two", None, **two), **one)
    assert forth == back


@given(FIELDS, FIELDS)
def test_an_update_owns_what_differs(before: dict[str, Any], after: dict[str, Any]) -> None:
    old = applied_by("one", None, **before)
    new = an_object(**after)
    track_update(old, new, SCHEMA, manager="kubectl", now=NOW)
    owned = set().union(*(decode_fields(entry["fieldsV1"]) for entry in managed_fields(new)), set())
    # An emptied container has no leaves left, hence no owners.
    leaves = {path for path in owned_fields(an_object(**after), SCHEMA) if path[-1] not in PARENTS}
    assert leaves - IDENTITY <= owned
