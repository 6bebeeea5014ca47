"""YAML texts: their expanded size is checked before objects are built."""

import pytest

from gangline.api.yaml_text import MAX_DEPTH, InvalidYamlError, check_yaml_size, load_yaml_documents

BOMB = "\n".join(
    ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)


def test_documents_are_read_and_empty_ones_left_out():
    assert load_yaml_documents("a: 1\n---\n---\n- b") == [{"a": 1}, ["b"]]


def test_aliases_and_merge_keys_may_be_used():
    text = "base: &b {x: 1, y: [1, 2]}\none: {<<: *b, z: 3}\ntwo: *b"
    assert load_yaml_documents(text)[0]["one"] == {"x": 1, "y": [1, 2], "z": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "stands for more than"),
        ("&a [*a]", "*a contains itself"),
        ("&a {b: {c: *a}}", "*a contains itself"),
        ("[" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        ("{a: " * 100_000, f"more than {MAX_DEPTH} levels"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: 'a' is given twice"),
        ("x: {a: 1, a: 2}", "line 1, column 11: 'a' is given twice"),
        ("a: [", "line 2"),
        ("a: 1" + "0" * 5000, "cannot be read"),
        ("? {a: b}\n: c", "unhashable"),
        ("a: *nowhere", "undefined alias"),
    ],
    ids=[
        "bomb", "circle", "wide circle", "deep list", "deep objects", "twice", "twice within",
        "broken", "no number", "object as key", "unknown alias",
    ],
)  # fmt: skip
def test_ambiguous_yaml_is_refused_with_its_position(text: str, expected: str):
    with pytest.raises(InvalidYamlError) as refused:
        load_yaml_documents(text)
    assert expected in str(refused.value)


def test_the_same_key_in_objects_beside_each_other_is_not_twice():
    assert check_yaml_size("[{a: 1}, {a: 2}]") == []
    assert check_yaml_size("{a: {a: {a: 1}}}") == []
    assert check_yaml_size("a: b\nb: a") == []
