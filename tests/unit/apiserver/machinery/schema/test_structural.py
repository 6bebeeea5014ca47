"""Structural schemas: pruning, defaults, and validation errors with their paths."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery.schema.structural import StructuralSchema

REPLICA = {
    "type": "object",
    "required": ["template"],
    "properties": {
        "replicas": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
        "policy": {"type": "string", "enum": ["Never", "Always"]},
        "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "roles": {"type": "object", "additionalProperties": REPLICA, "maxProperties": 3},
                "port": {"x-kubernetes-int-or-string": True, "pattern": "^[a-z]+$"},
                "name": {"type": "string", "maxLength": 5, "minLength": 2, "pattern": "^[a-z]+$"},
                "note": {"type": "string", "nullable": True, "default": "none"},
                "when": {"type": "string", "format": "date-time"},
                "share": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1},
                "paused": {"type": "boolean", "default": False},
                "tags": {
                    "type": "array",
                    "x-kubernetes-list-type": "set",
                    "items": {"type": "string"},
                },
                "ports": {
                    "type": "array",
                    "maxItems": 3,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["port", "protocol"],
                    "items": {
                        "type": "object",
                        "required": ["port"],
                        "properties": {
                            "port": {"type": "integer"},
                            "protocol": {"type": "string", "default": "TCP"},
                        },
                    },
                },
                "exactly": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "pod": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "x-kubernetes-preserve-unknown-fields": True,
                },
            },
        },
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
KIND = StructuralSchema(SCHEMA)


def an_object(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "x"}, "spec": spec}


def mistakes(**spec: Any) -> dict[str, str]:
    return {cause.field: cause.message for cause in KIND.validate(an_object(**spec))}


def test_unknown_fields_are_named_and_dropped() -> None:
    obj = an_object(roles={"Worker": {"template": {"any": 1}, "replica": 2}}, color="red")
    obj["metadata"]["lables"] = {}
    expected = ["metadata.lables", "spec.roles[Worker].replica", "spec.color"]
    assert KIND.prune(obj) == expected
    assert obj["spec"] == {"roles": {"Worker": {"template": {"any": 1}}}}
    assert obj["metadata"] == {"name": "x"}


def test_unknown_fields_in_list_items_are_named_with_their_index() -> None:
    assert KIND.prune(an_object(ports=[{"port": 1}, {"port": 2, "prot": 1}])) == [
        "spec.ports[1].prot"
    ]


def test_embedded_objects_keep_what_every_object_has_and_preserved_fields() -> None:
    obj = an_object(pod={"kind": "Pod", "metadata": {"name": "p", "odd": 1}, "spec": {"a": 1}})
    assert KIND.prune(obj) == ["spec.pod.metadata.odd"]
    assert obj["spec"]["pod"] == {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"a": 1}}


def test_nulls_go_where_null_is_no_value_and_stay_where_it_is() -> None:
    obj = an_object(name=None, note=None, paused=None)
    KIND.prune(obj)
    assert obj["spec"] == {"note": None}
    KIND.apply_defaults(obj)
    assert obj["spec"] == {"note": None, "paused": False}


def test_defaults_reach_into_lists_and_maps_and_leave_what_is_given() -> None:
    obj = an_object(roles={"Worker": {}, "Master": {"replicas": 0}}, ports=[{"port": 1}])
    KIND.apply_defaults(obj)
    assert obj["spec"] == {
        "roles": {"Worker": {"replicas": 1}, "Master": {"replicas": 0}},
        "ports": [{"port": 1, "protocol": "TCP"}],
        "note": "none",
        "paused": False,
    }


def test_defaults_are_not_shared_between_objects() -> None:
    kind = StructuralSchema({"properties": {"spec": {"type": "object", "default": {"a": []}}}})
    one, other = {"kind": "X"}, {"kind": "X"}
    kind.apply_defaults(one)
    kind.apply_defaults(other)
    one["spec"]["a"].append(1)  # type: ignore[index]
    assert other["spec"] == {"a": []}


ROLE = {"template": {}}


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        ({"roles": {"W": {}}}, "spec.roles[W].template", "Required value"),
        (
            {"roles": {"W": ROLE | {"policy": "Maybe"}}},
            "spec.roles[W].policy",
            'Unsupported value: "Maybe": supported values: "Never", "Always"',
        ),
        (
            {"roles": dict.fromkeys("abcd", ROLE)},
            "spec.roles",
            "Too many: 4: must have at most 3 items",
        ),
        ({"name": "abcdef"}, "spec.name", "Too long: may not be more than 5 characters"),
        ({"tags": ["a", "a"]}, "spec.tags[1]", 'Duplicate value: "a"'),
        (
            {"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]},
            "spec.ports[1]",
            'Duplicate value: {"port":1,"protocol":"TCP"}',
        ),
        (
            {"exactly": {}},
            "spec.exactly",
            'Invalid value: {}: "spec.exactly" must validate one and only one schema (oneOf).'
            " Found none valid",
        ),
    ],
)
def test_error_has_the_wording_of_kubernetes(spec: dict[str, Any], path: str, message: str) -> None:
    assert mistakes(**spec) == {path: message}


@pytest.mark.parametrize(
    ("spec", "path", "shown", "rule"),
    [
        ({"name": "a"}, "name", '"a"', "should be at least 2 chars long"),
        ({"name": "ab\n"}, "name", '"ab\\n"', "should match '^[a-z]+$'"),
        ({"when": "yesterday"}, "when", '"yesterday"', "must be of type date-time"),
        ({"when": "2026-13-01T00:00Z"}, "when", '"2026-13-01T00:00Z"', "must be of type date-time"),
        ({"share": 0}, "share", "0", "should be greater than 0"),
        ({"share": 1.5}, "share", "1.5", "should be less than or equal to 1"),
        ({"paused": 1}, "paused", '"integer"', 'must be of type boolean: "integer"'),
        ({"ports": {}}, "ports", '"object"', 'must be of type array: "object"'),
        ({"ports": "x"}, "ports", '"string"', 'must be of type array: "string"'),
        ({"port": True}, "port", '"boolean"', 'must be of type integer,string: "boolean"'),
        ({"port": 1.5}, "port", '"number"', 'must be of type integer,string: "number"'),
        ({"port": "80"}, "port", '"80"', "should match '^[a-z]+$'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_shown_with_the_rule_that_it_breaks(
    spec: dict[str, Any], path: str, shown: str, rule: str
) -> None:
    expected = f"Invalid value: {shown}: spec.{path} in body {rule}"
    assert mistakes(**spec) == {f"spec.{path}": expected}


@pytest.mark.parametrize(
    ("replicas", "shown", "rule"),
    [
        (-1, "-1", "should be greater than or equal to 0"),
        (2**31, "2147483648", "must be of type int32"),
        ("3", '"string"', 'must be of type integer: "string"'),
        (1.5, '"number"', 'must be of type integer: "number"'),
        (None, '"null"', 'must be of type integer: "null"'),
    ],
)
def test_a_wrong_count_is_reported_in_its_role(replicas: Any, shown: str, rule: str) -> None:
    path = "spec.roles[W].replicas"
    found = mistakes(roles={"W": ROLE | {"replicas": replicas}})
    assert found == {path: f"Invalid value: {shown}: {path} in body {rule}"}


def test_what_is_right_passes() -> None:
    assert not mistakes(
        roles={"W": {"template": {"spec": {"x": [1]}}, "replicas": 3, "policy": "Never"}},
        port=80,
        name="abc",
        note=None,
        when="2026-11-20T12:00:00.123456Z",
        share=0.5,
        tags=["a", "b"],
        ports=[{"port": 1}, {"port": 1, "protocol": "UDP"}],
        exactly={"a": "x"},
    )


def test_forty_mistakes_are_all_reported() -> None:
    roles = {f"role{i}": {"replicas": -1, "policy": "x"} for i in range(13)}
    assert len(KIND.validate(an_object(roles=roles))) == 13 * 3 + 1


def test_a_huge_value_is_not_repeated_in_full() -> None:
    (cause,) = KIND.validate(an_object(when="x" * 1_000_000))
    assert len(cause.message) < 500


def test_lists_of_built_in_kinds_may_repeat_their_merge_keys() -> None:
    items = {"type": "object", "properties": {"name": {"type": "string"}}}
    env = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-strategy": "merge",
        "items": items,
    }
    kind = StructuralSchema({"properties": {"env": env}})
    assert not kind.validate({"env": [{"name": "A"}, {"name": "A"}]})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["spec", "roles", "W", "replicas", "template", "ports", "port", "name", "tags", "pod",
             "note", "metadata", "labels", "odd", "exactly", "a", "status", "kind"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip
OBJECTS = st.dictionaries(st.sampled_from(["spec", "status", "metadata", "odd"]), ANYTHING)


@given(OBJECTS)
def test_pruning_twice_is_pruning_once(obj: dict[str, Any]) -> None:
    KIND.prune(obj)
    once = copy.deepcopy(obj)
    assert KIND.prune(obj) == []
    assert obj == once


@given(OBJECTS)
def test_defaults_are_applied_once(obj: dict[str, Any]) -> None:
    KIND.apply_defaults(obj)
    once = copy.deepcopy(obj)
    KIND.apply_defaults(obj)
    assert obj == once


@given(OBJECTS)
def test_validation_never_fails_on_odd_input_and_changes_nothing(obj: dict[str, Any]) -> None:
    before = copy.deepcopy(obj)
    assert KIND.validate(obj) == KIND.validate(obj)
    assert obj == before
