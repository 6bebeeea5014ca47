"""Access to decoded JSON whose shape has not been validated yet.

Defaulting, validation and printing run on objects that may have wrong types anywhere. These
functions treat a value of another type as absent, so that schema validation alone reports it.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


def fill_absent(target: Json, defaults: Mapping[str, Any]) -> None:
    """Set absent fields in place."""
    for name, value in defaults.items():
        if target.get(name) is None:
            target[name] = value


def objects_in(value: Any) -> list[Json]:
    """Return the objects in a list; an empty list if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def subobject(target: Any, *names: str) -> Json:
    """Return the object at a path, or a new empty one if it is absent."""
    for name in names:
        target = target.get(name) if isinstance(target, dict) else None
    return target if isinstance(target, dict) else {}


def without_nulls(value: Any) -> Any:
    """Return plain data without the fields that are null; items of lists stay.

    Go writes null for an empty list or map, which means "not given".
    """
    if isinstance(value, dict):
        return {name: without_nulls(child) for name, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
