"""Field errors with the wording of Kubernetes, which clients and users know.

Each function returns one ``StatusCause``: the path of the field, a reason for programs, and a
message that shows the value. ``core.errors.invalid`` combines all causes into the response.
"""

import json
from collections.abc import Iterable
from typing import Any

from gangline.api.meta.objects import StatusCause

MAX_VALUE_CHARS = 300
"""Maximum number of characters of a wrong value in an error message."""


def child(path: str, name: str) -> str:
    """Return the path of a field of the object at ``path``."""
    return f"{path}.{name}" if path else name


def indexed(path: str, index: int | str) -> str:
    """Return the path of an item of a list, or of a value in a map with free keys."""
    return f"{path}[{index}]"


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    if len(text) > MAX_VALUE_CHARS:
        return f"{text[:MAX_VALUE_CHARS]}… ({len(text)} characters)"
    return text


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def required(path: str, detail: str = "") -> StatusCause:
    return StatusCause("FieldValueRequired", _with_detail("Required value", detail), path)


def invalid(path: str, value: Any, detail: str) -> StatusCause:
    return StatusCause(
        "FieldValueInvalid", _with_detail(f"Invalid value: {_format_value(value)}", detail), path
    )


def type_invalid(path: str, actual: str, expected: str) -> StatusCause:
    detail = f'{path} in body must be of type {expected}: "{actual}"'
    return StatusCause("FieldValueTypeInvalid", f'Invalid value: "{actual}": {detail}', path)


def unsupported(path: str, value: Any, allowed: Iterable[Any]) -> StatusCause:
    values = ", ".join(json.dumps(item, ensure_ascii=False) for item in allowed)
    message = f"Unsupported value: {_format_value(value)}: supported values: {values}"
    return StatusCause("FieldValueNotSupported", message, path)


def duplicate(path: str, value: Any) -> StatusCause:
    return StatusCause("FieldValueDuplicate", f"Duplicate value: {_format_value(value)}", path)


def forbidden(path: str, detail: str) -> StatusCause:
    """The field must not be set, or must not be changed."""
    return StatusCause("FieldValueForbidden", f"Forbidden: {detail}", path)


def not_found(path: str, value: Any) -> StatusCause:
    return StatusCause("FieldValueNotFound", f"Not found: {_format_value(value)}", path)


def too_long(path: str, limit: int, unit: str = "bytes") -> StatusCause:
    """The text is longer than ``limit``. The message does not repeat the text."""
    return StatusCause("FieldValueTooLong", f"Too long: may not be more than {limit} {unit}", path)


def too_many(path: str, count: int, limit: int) -> StatusCause:
    message = f"Too many: {count}: must have at most {limit} items"
    return StatusCause("FieldValueTooMany", message, path)
