"""Null on the wire: it stands for a field that was not given, as Go writes an empty list."""

from typing import Any


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null; items of lists stay as they are."""
    if isinstance(value, dict):
        return {name: without_nulls(child) for name, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
