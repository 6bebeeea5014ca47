"""JSON patch and merge patch: the rules of the RFCs, and errors of patches that do not fit."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.machinery.patch.json_patch import (
    PatchError,
    json_patch,
    merge_patch,
)

DOCUMENT = {"metadata": {"labels": {"a": "b"}}, "spec": {"items": [1, 2, 3], "n": 1}}


def test_operations_are_applied_in_order_to_a_copy() -> None:
    document = copy.deepcopy(DOCUMENT)
    patched = json_patch(
        document,
        [
            {"op": "test", "path": "/spec/n", "value": 1},
            {"op": "replace", "path": "/spec/n", "value": 2},
            {"op": "add", "path": "/spec/items/-", "value": 4},
            {"op": "remove", "path": "/metadata/labels/a"},
            {"op": "copy", "from": "/spec/n", "path": "/spec/m"},
            {"op": "move", "from": "/spec/items/0", "path": "/spec/first"},
        ],
    )
    assert patched == {
        "metadata": {"labels": {}},
        "spec": {"items": [2, 3, 4], "n": 2, "m": 2, "first": 1},
    }
    assert document == DOCUMENT


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
DOCUMENTS = st.dictionaries(KEYS, st.recursive(LEAVES, lambda v: st.dictionaries(KEYS, v)))
PATCHES = st.dictionaries(
    KEYS, st.recursive(LEAVES | st.none(), lambda v: st.dictionaries(KEYS, v))
)


@given(DOCUMENTS, PATCHES)
def test_a_merge_patch_applied_twice_is_applied_once(
    document: dict[str, Any], patch: dict[str, Any]
) -> None:
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once


@given(DOCUMENTS, PATCHES)
def test_results_share_nothing_with_what_they_were_made_of(
    document: dict[str, Any], patch: dict[str, Any]
) -> None:
    before = copy.deepcopy((document, patch))
    _spoil(merge_patch(document, patch))
    assert (document, patch) == before


def repr_json(value: Any) -> Any:
    """Return a value in which ``True`` and ``1`` differ, as they do in JSON."""
    if isinstance(value, dict):
        return {name: repr_json(child) for name, child in value.items()}
    return repr(value)


def _spoil(value: Any) -> None:
    children = list(value.values()) if isinstance(value, dict) else list(value)
    value.clear()
    for child in children:
        if isinstance(child, dict | list):
            _spoil(child)


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
