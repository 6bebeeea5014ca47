"""Documents of a client: nesting, number of values, size of integers."""

from typing import Any

import pytest

from gangline.local import limits
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import (
    check_document,
    encode_json,
    is_small_document,
)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize(
    "value",
    [None, 1, "a", nested(limits.MAX_DEPTH), [0] * (limits.MAX_VALUES - 1), [limits.MAX_INTEGER]],
    ids=["null", "number", "text", "deep", "many", "large"],
)
def test_document_at_the_limit_is_accepted(value: Any) -> None:
    check_document(value)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (nested(limits.MAX_DEPTH + 1), 400),
        ([0] * limits.MAX_VALUES, 413),
        ({str(number): "" for number in range(limits.MAX_VALUES)}, 413),
        ({"a": [limits.MAX_INTEGER + 1]}, 400),
        ([limits.MIN_INTEGER - 1], 400),
    ],
    ids=["deep", "many items", "many fields", "large", "small"],
)
def test_document_beyond_the_limit_is_refused(value: Any, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        check_document(value)
    assert refused.value.status.code == code
    assert not is_small_document(encode_json(value))


def alternating(levels: int) -> bytes:
    return b'[{"a":' * (levels // 2) + b"1" + b"}]" * (levels // 2)


@pytest.mark.parametrize(
    ("body", "is_small"),
    [
        (b'{"a": [1, {"b": "c"}]}', True),
        (b'{"a": "1795398010683772000"}', False),
        (b'{"a": "{"}', False),
        (alternating(limits.MAX_DEPTH - 2), True),
        (alternating(limits.MAX_DEPTH + 2), False),
    ],
)
def test_small_document_is_recognised_without_a_walk(body: bytes, is_small: bool) -> None:
    assert is_small_document(body) is is_small
