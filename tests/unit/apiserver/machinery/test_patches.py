"""JSON patch and merge patch: the rules of the RFCs, and errors of patches that do not fit."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery.patches import (
    PatchError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)

DOCUMENT = {"metadata": {"labels": {"a": "b"}}, "spec": {"items": [1, 2, 3], "n": 1}}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        pytest.param({"op": "add"}, 400, id="no list"),
        pytest.param("add", 400, id="text"),
        pytest.param(["add"], 400, id="an operation that is no object"),
        pytest.param([{"op": "paint", "path": "/a"}], 400, id="unknown operation"),
        pytest.param([{"op": "add", "path": "/a"}], 400, id="no value"),
        pytest.param([{"op": "add", "value": 1}], 400, id="no path"),
        pytest.param([{"op": "add", "path": 7, "value": 1}], 400, id="path of the wrong type"),
        pytest.param([{"op": "test", "path": "/spec/n", "value": 5}], 422, id="failed test"),
        pytest.param([{"op": "test", "path": "/spec/x", "value": 5}], 422, id="test of nothing"),
        pytest.param([{"op": "remove", "path": "/spec/x"}], 422, id="removal of nothing"),
        pytest.param(
            [{"op": "replace", "path": "/spec/x", "value": 1}], 422, id="replaced nothing"
        ),
        pytest.param([{"op": "add", "path": "/x/y", "value": 1}], 422, id="add into nothing"),
        pytest.param([{"op": "remove", "path": "/spec/items/9"}], 422, id="past the end"),
        pytest.param([{"op": "replace", "path": "", "value": [1]}], 422, id="no object is left"),
        pytest.param([{"op": "remove", "path": "/a"}] * 10_001, 413, id="too many"),
    ],
)
def test_a_json_patch_that_does_not_fit_has_its_code(operations: Any, code: int) -> None:
    document = copy.deepcopy(DOCUMENT)
    with pytest.raises(PatchError) as caught:
        json_patch(document, operations)
    assert caught.value.code == code
    assert document == DOCUMENT


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        # Not of the RFC: Kubernetes has no null in lists.
        ({"a": ["b"]}, {"a": [None, "c", {"d": None}]}, {"a": ["c", {}]}),
    ],
)
def test_merge_patches_do_what_the_rfc_lists(
    document: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert merge_patch(document, patch) == result


@pytest.mark.parametrize("patch", [None, [], "x", 1])
def test_a_merge_patch_must_be_an_object(patch: Any) -> None:
    with pytest.raises(PatchError):
        merge_patch({}, patch)


KEYS = st.sampled_from("abcd")
SCALARS = st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x"])
LEAVES = SCALARS | st.lists(SCALARS, max_size=2)
PATCHES = st.dictionaries(
    KEYS, st.recursive(LEAVES | st.none(), lambda v: st.dictionaries(KEYS, v))
)


def test_copies_of_copies_are_refused_before_they_fill_the_memory():
    copies = [{"op": "copy", "from": "/d", "path": f"/d/c{n}"} for n in range(60)]
    with pytest.raises(PatchError) as refused:
        json_patch({"d": {"a": "x" * 1000}}, copies)
    assert refused.value.code == 413


def test_a_few_copies_do_what_they_say():
    copies = [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "remove", "path": "/a/x"}]
    before = {"a": {"x": 1}}
    assert json_patch(before, copies) == {"a": {}, "b": {"x": 1}}
    assert before == {"a": {"x": 1}}


SCHEMA = {
    "properties": {
        "containers": {
            "type": "array",
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "name",
            "items": {
                "properties": {
                    "args": {"type": "array"},
                    "ports": {
                        "x-kubernetes-patch-strategy": "merge",
                        "x-kubernetes-patch-merge-key": "containerPort",
                    },
                }
            },
        },
        "volumes": {
            "x-kubernetes-patch-strategy": "merge,retainKeys",
            "x-kubernetes-patch-merge-key": "name",
        },
        "finalizers": {"x-kubernetes-patch-strategy": "merge"},
        "args": {"type": "array"},
        "strategy": {"x-kubernetes-patch-strategy": "retainKeys"},
    }
}


def patched(document: dict[str, Any], patch: Any) -> dict[str, Any]:
    before = copy.deepcopy((document, patch))
    result = strategic_merge_patch(document, patch, SCHEMA)
    assert (document, patch) == before
    return result


def containers(*of: str) -> list[dict[str, Any]]:
    return [{"name": name, "image": f"{name}:1"} for name in of]


A, B, C = containers("a", "b", "c")
STRATEGY = {"strategy": {"type": "A", "rolling": {"x": 1}}}
TWO_PORTS = [{"containerPort": 53, "protocol": protocol} for protocol in ("TCP", "UDP")]


def in_order(names: str, *patched: dict[str, Any]) -> dict[str, Any]:
    order = {"$setElementOrder/containers": [{"name": name} for name in names]}
    return order | ({"containers": list(patched)} if patched else {})


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        pytest.param([A, B], [{"name": "b", "x": 1}], [A, B | {"x": 1}], id="merged by key"),
        pytest.param([A, B], [C], [C, A, B], id="new items first"),
        # b, which only the server has, stood in front of c; c and a are in the order of the patch.
        pytest.param(
            [A, B, C], in_order("ca", {"name": "c", "x": 1}), [B, C | {"x": 1}, A], id="order"
        ),
        pytest.param([A, B], in_order("ba"), [B, A], id="order alone"),
        pytest.param(
            [A, B],
            [{"$patch": "delete", "name": "a"}, {"name": "b", "x": 1}],
            [B | {"x": 1}],
            id="deleted",
        ),
        pytest.param([], [{"$patch": "delete", "name": "a"}], [], id="nothing to delete"),
        pytest.param(
            [A, B], [{"$patch": "replace"}, {"name": "z"}], [{"name": "z"}], id="replaced"
        ),
        pytest.param(
            [{"name": "a", "args": ["x"]}],
            [{"name": "a", "args": ["y"]}],
            [{"name": "a", "args": ["y"]}],
            id="list without key in an item",
        ),
        pytest.param(
            [{"name": "a", "ports": TWO_PORTS}],
            [{"name": "a", "ports": [{"containerPort": 80}]}],
            [{"name": "a", "ports": [{"containerPort": 80}, *TWO_PORTS]}],
            id="items that share a key",
        ),
    ],
)
def test_keyed_lists(document: Any, patch: Any, result: Any) -> None:
    change = patch if isinstance(patch, dict) else {"containers": patch}
    assert patched({"containers": document}, change) == {"containers": result}


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        pytest.param({"args": [1, 2]}, {"args": [3]}, {"args": [3]}, id="list without key"),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]},
            {"finalizers": ["c", "b"]},
            id="scalars",
        ),
        pytest.param(
            STRATEGY,
            {"strategy": {"$patch": "replace", "type": "B"}},
            {"strategy": {"type": "B"}},
            id="replaced object",
        ),
        pytest.param(STRATEGY, {"strategy": {"$patch": "delete"}}, {"strategy": {}}, id="emptied"),
        pytest.param(
            STRATEGY,
            {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
            {"strategy": {"type": "Recreate"}},
            id="retained keys",
        ),
        pytest.param(
            {"a": 1, "b": 2},
            {"a": None, "c": {"d": None, "e": 1}},
            {"b": 2, "c": {"e": 1}},
            id="nulls remove and never appear",
        ),
    ],
)
def test_other_fields(
    document: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert patched(document, patch) == result


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (in_order("a", B), "setElementOrder"),
        (in_order("abc", C, A), "does not match"),
        ({"strategy": {"$retainKeys": ["other"], "type": "Recreate"}}, "type"),
    ],
    ids=["item without place", "other order", "field that is not retained"],
)
def test_contradictory_patch_is_refused(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(PatchError, match=message):
        patched({"containers": [A]}, patch)


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param([], id="no object"),
        pytest.param({"$patch": "paint"}, id="unknown directive"),
        pytest.param({"containers": [{"image": "x"}]}, id="item without its key"),
        pytest.param({"containers": ["x"]}, id="item that is no object"),
        pytest.param({"containers": [7]}, id="item that is a number"),
        pytest.param({"containers": [{"$patch": "paint", "name": "a"}]}, id="unknown in a list"),
        pytest.param({"finalizers": [{"a": 1}]}, id="object among scalars"),
        pytest.param({"$setElementOrder/finalizers": 7}, id="order that is no list"),
        pytest.param({"$setElementOrder/containers": ["a"]}, id="order without keys"),
        pytest.param({"$deleteFromPrimitiveList/finalizers": 7}, id="deletion that is no list"),
        pytest.param({"$retainKeys": 7}, id="retained keys that are no list"),
    ],
)
def test_a_misused_directive_is_a_bad_request(patch: Any) -> None:
    document = {"containers": containers("a"), "finalizers": ["a"]}
    with pytest.raises(PatchError) as caught:
        patched(document, patch)
    assert caught.value.code == 400


NAMES = st.lists(st.sampled_from("abcde"), unique=True)
ITEMS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3)).map(
    lambda values: [{"name": name, "v": value} for name, value in values.items()]
)
MEMBERS = st.lists(st.sampled_from("xyz"), unique=True)
STRATEGIC_DOCUMENTS = st.fixed_dictionaries(
    {}, optional={"containers": ITEMS, "finalizers": MEMBERS}
)


@given(STRATEGIC_DOCUMENTS, STRATEGIC_DOCUMENTS)
def test_a_strategic_patch_applied_twice_is_applied_once(
    document: dict[str, Any], patch: dict[str, Any]
) -> None:
    once = strategic_merge_patch(document, patch, SCHEMA)
    assert strategic_merge_patch(once, patch, SCHEMA) == once


@given(STRATEGIC_DOCUMENTS, STRATEGIC_DOCUMENTS)
def test_nothing_of_either_side_is_lost(document: dict[str, Any], patch: dict[str, Any]) -> None:
    result = strategic_merge_patch(document, patch, SCHEMA)
    found = {item["name"]: item["v"] for item in result.get("containers", [])}
    before = {item["name"]: item["v"] for item in document.get("containers", [])}
    after = {item["name"]: item["v"] for item in patch.get("containers", [])}
    assert found == {**before, **after}


@given(ITEMS, NAMES)
def test_deleted_items_are_removed_and_others_stay(
    items: list[dict[str, Any]], removed: list[str]
) -> None:
    patch = {"containers": [{"$patch": "delete", "name": name} for name in removed]}
    result = strategic_merge_patch({"containers": items}, patch, SCHEMA)
    assert result["containers"] == [item for item in items if item["name"] not in removed]


@pytest.mark.parametrize(
    ("operations", "named"),
    [
        (
            [{"op": "add", "path": "/a", "value": 1}, {"op": "remove", "path": "/b/c"}],
            "operation 1",
        ),
        ([{"op": "test", "path": "/data/password", "value": "x"}], "test '/data/password'"),
        ([{"op": "add", "path": "/data/password/0", "value": "x"}], "add '/data/password/0'"),
    ],
)
def test_an_error_of_a_json_patch_names_the_operation_and_no_value(operations, named):
    with pytest.raises(PatchError) as error:
        json_patch({"data": {"password": "hunter2"}}, operations)
    assert named in error.value.message
    assert "hunter2" not in error.value.message
