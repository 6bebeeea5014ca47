"""Decoding JSON in slices, and counting its values without decoding."""

import json
import random
from typing import Any

import msgspec
import pytest

from gangline.local.apiserver.machinery import json_text
from gangline.local.apiserver.machinery.json_text import JSON_ERRORS, decode_json, find_excess

LEAVES = (
    "",
    "plain",
    '"quoted"',
    "back\\slash",
    '\\"',
    "[{,:}]",
    "ü€",
    0,
    -1.5,
    None,
    True,
    [],
    {},
)


def random_value(random_source: random.Random, depth: int) -> Any:
    if depth == 0 or random_source.random() < 0.2:
        return random_source.choice(LEAVES)
    members = [random_value(random_source, depth - 1) for _ in range(random_source.randrange(5))]
    if random_source.random() < 0.5:
        return members
    return {f"{random_source.choice(LEAVES)}{n}": member for n, member in enumerate(members)}


def count_values(value: Any) -> int:
    """The definition: 1, and each field and each element at any depth."""
    members = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(members, list):
        return 1
    return 1 + sum(count_values(member) for member in members)


@pytest.mark.parametrize("slice_bytes", [1, 7, 64])
def test_decoding_in_slices_gives_the_value_of_the_text(
    monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(json_text, "SLICE_BYTES", slice_bytes)
    source = random.Random(slice_bytes)
    for _ in range(200):
        value = random_value(source, 6)
        for indent in (None, 2):
            text = json.dumps(value, indent=indent, ensure_ascii=source.random() < 0.5).encode()
            assert decode_json(b" \n" + text) == value


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [1, 2, tru], "b": 1}',
        b'{"a": {"b": "\xff\xff\xff\xff\xff"}}',
        b'{"a": [1, 2, 3, 4, 5, 6]',
        b'{"a": "a text with a bad escape \\x"}',
        b"[1, 2, 3, 4, 5, 6]]",
        b"[1, 2, 3, 4, 5, 06]",
        b"[" * 100_000,
    ],
)
def test_text_that_is_not_json_is_an_error_in_any_slice(
    monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    with pytest.raises(JSON_ERRORS):
        msgspec.json.decode(text)
    for slice_bytes in (1, 4, 16):
        monkeypatch.setattr(json_text, "SLICE_BYTES", slice_bytes)
        with pytest.raises(JSON_ERRORS) as caught:
            decode_json(text)
        assert "(byte" not in str(caught.value)


@pytest.mark.parametrize("scan_bytes", [1, 2, 3, 10, 1000])
def test_values_are_counted_as_the_decoded_ones(
    monkeypatch: pytest.MonkeyPatch, scan_bytes: int
) -> None:
    monkeypatch.setattr(json_text, "SCAN_BYTES", scan_bytes)
    source = random.Random(scan_bytes)
    for _ in range(200):
        value = random_value(source, 5)
        text = json.dumps(value, indent=source.choice([None, 1])).encode()
        count = count_values(value)
        assert not find_excess(text, count, 100)
        assert find_excess(text, count - 1, 100) == "values"


def test_long_lists_and_objects_are_refused_before_their_end() -> None:
    assert find_excess(b"[" + b"1," * 1_000_000, 100_000, 100) == "values"
    assert find_excess(b'{"a":[' + b"{}," * 900_000, 100_000, 100) == "values"
    assert find_excess(b"[" * 1_000_000, 100_000, 100) == "depth"
    assert not find_excess(b'["' + b",[{" * 900_000 + b'"]', 100_000, 100)
