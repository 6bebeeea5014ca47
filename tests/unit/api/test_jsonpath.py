"""The JSONPath subset of printer columns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jsonpath import JSONPath, JSONPathError

OBJECT = {
    "metadata": {"name": "x", "annotations": {"example.com/note": "hi", "a'b": 1}},
    "items": [{"n": 1, "t": "a"}, {"n": 2, "t": "b", "s": {"u": True}}, {"n": 3}],
    "none": None,
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".metadata.name", ["x"]),
        ("metadata.name", ["x"]),
        ("$.metadata.name", ["x"]),
        ("{.metadata.name}", ["x"]),
        (".metadata['name']", ["x"]),
        ('.metadata["name"]', ["x"]),
        (r".metadata.annotations.example\.com/note", ["hi"]),
        (".metadata.annotations['example.com/note']", ["hi"]),
        (r".metadata.annotations['a\'b']", [1]),
        (".items[0].n", [1]),
        (".items[-1].n", [3]),
        (".items[-1:].n", [3]),
        (".items[1:].n", [2, 3]),
        (".items[:2].n", [1, 2]),
        (".items[0:3:2].n", [1, 3]),
        (".items[*].n", [1, 2, 3]),
        (".items.*.n", [1, 2, 3]),
        (".items[9].n", []),
        ('.items[?(@.t=="b")].n', [2]),
        (".items[?(@.t=='b')].n", [2]),
        ('.items[?(@.t!="b")].n', [1]),
        (".items[?(@.n>=2)].n", [2, 3]),
        (".items[?(@.n<2)].n", [1]),
        (".items[?(@.s.u==true)].n", [2]),
        (".items[?(@.s)].n", [2]),
        ('.items[?(@.n>"a")].n', []),
        (".metadata.missing.deeper", []),
        (".metadata.name.deeper", []),
        (".none", [None]),
        (".", [OBJECT]),
        ("", [OBJECT]),
    ],
)
def test_a_path_finds(path: str, values: list[Any]) -> None:
    assert JSONPath(path).find(OBJECT) == values


@pytest.mark.parametrize(
    "path", [".a[", ".a[x]", ".a[0:9:0]", ".a..b", ".a[?(@.b=)]", ".a[?(b==1)]", ".a[?(@.b==x)]"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(JSONPathError):
        JSONPath(path)


VALUES = st.recursive(
    st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.just("a"), inner)
)


@given(st.text(alphabet=".a[]*?()@='\"\\:-1{}$ ", max_size=20), VALUES)
def test_any_text_is_a_path_or_is_refused(text: str, value: Any) -> None:
    try:
        path = JSONPath(text)
    except JSONPathError:
        return
    assert isinstance(path.find(value), list)
