"""Removal of null fields: Go writes null for an empty list or map, which means "not given"."""

from typing import Any


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null; items of lists stay."""
    if isinstance(value, dict):
        return {name: without_nulls(child) for name, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
