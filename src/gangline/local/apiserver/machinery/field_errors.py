"""The ways a field can be wrong, in Kubernetes' words, so that its clients and people know them.

Each function makes one ``StatusCause``: the path of the field, a reason that scripts can test and
a message that shows the value. ``invalid_status`` puts all causes into the answer of the server.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gangline.api.meta import Status, StatusCause, StatusDetails

__all__ = [
    "child",
    "duplicate",
    "forbidden",
    "indexed",
    "invalid",
    "invalid_status",
    "not_found",
    "required",
    "too_few",
    "too_long",
    "too_many",
    "type_invalid",
    "unsupported",
]

VALUE_SHOWN = 300
"""How many characters of a wrong value an error repeats: enough to know it, never a megabyte."""


def child(path: str, name: str) -> str:
    """Return the path of a field of the object at ``path``."""
    return f"{path}.{name}" if path else name


def indexed(path: str, index: int | str) -> str:
    """Return the path of an item of a list or of a map with free keys."""
    return f"{path}[{index}]"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    if len(text) > VALUE_SHOWN:
        return f"{text[:VALUE_SHOWN]}… ({len(text)} characters)"
    return text


def _detailed(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def required(path: str, detail: str = "") -> StatusCause:
    """Say that a field must be given."""
    return StatusCause("FieldValueRequired", _detailed("Required value", detail), path)


def invalid(path: str, value: Any, detail: str) -> StatusCause:
    """Say that a value breaks a rule, which ``detail`` states."""
    return StatusCause(
        "FieldValueInvalid", _detailed(f"Invalid value: {_shown(value)}", detail), path
    )


def type_invalid(path: str, actual: str, expected: str) -> StatusCause:
    """Say that a value has the wrong JSON type."""
    detail = f'{path} in body must be of type {expected}: "{actual}"'
    return StatusCause("FieldValueTypeInvalid", f'Invalid value: "{actual}": {detail}', path)


def unsupported(path: str, value: Any, allowed: Iterable[Any]) -> StatusCause:
    """Say that a value is none of a closed set."""
    values = ", ".join(json.dumps(item, ensure_ascii=False) for item in allowed)
    message = f"Unsupported value: {_shown(value)}: supported values: {values}"
    return StatusCause("FieldValueNotSupported", message, path)


def duplicate(path: str, value: Any) -> StatusCause:
    """Say that a value which must be unique was seen before."""
    return StatusCause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", path)


def forbidden(path: str, detail: str) -> StatusCause:
    """Say that a field must not be given, or not be changed."""
    return StatusCause("FieldValueForbidden", f"Forbidden: {detail}", path)


def not_found(path: str, value: Any) -> StatusCause:
    """Say that a value names something that does not exist."""
    return StatusCause("FieldValueNotFound", f"Not found: {_shown(value)}", path)


def too_long(path: str, limit: int, unit: str = "bytes") -> StatusCause:
    """Say that a text is longer than ``limit``. The text itself is not repeated."""
    return StatusCause("FieldValueTooLong", f"Too long: may not be more than {limit} {unit}", path)


def too_many(path: str, count: int, limit: int) -> StatusCause:
    """Say that a list or a map has more than ``limit`` members."""
    message = f"Too many: {count}: must have at most {limit} items"
    return StatusCause("FieldValueTooMany", message, path)


def too_few(path: str, count: int, limit: int) -> StatusCause:
    """Say that a list or a map has fewer than ``limit`` members."""
    return invalid(path, count, f"{path} in body should have at least {limit} items")


def invalid_status(group: str, kind: str, name: str, causes: Sequence[StatusCause]) -> Status:
    """Return the answer to a request whose object has mistakes: HTTP 422, all causes listed."""
    distinct = list(dict.fromkeys((cause.field, cause.message) for cause in causes))
    texts = [f"{field}: {message}" if field else message for field, message in distinct]
    summary = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind}.{group}" if group else kind
    return Status(
        status="Failure",
        message=f'{qualified} "{name}" is invalid: {summary}',
        reason="Invalid",
        details=StatusDetails(name=name, group=group, kind=kind, causes=list(causes)),
        code=422,
    )
