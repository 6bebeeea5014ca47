"""Documents of a client: nesting, number of values, size of integers."""

from typing import Any

import pytest

from gangline.local import limits
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import check_document


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
