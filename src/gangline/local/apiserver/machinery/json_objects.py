"""Access to decoded JSON whose shape has not been validated yet.

Defaulting, validation and printing run on objects that may have wrong types anywhere. These
functions treat a value of another type as absent, so that schema validation alone reports it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gangline.local.apiserver.machinery.schema.nodes import Json


def fill_absent(target: Json, defaults: Mapping[str, Any]) -> None:
    """Set absent fields in place."""
    for name, value in defaults.items():
        if target.get(name) is None:
            target[name] = value


def iter_objects(value: Any) -> Iterator[Json]:
    """Yield the objects in a list. Yields nothing if the value is not a list."""
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def subobject(target: Any, *names: str) -> Json:
    """Return the object at a path, or a new empty one if it is absent."""
    for name in names:
        target = target.get(name) if isinstance(target, dict) else None
    return target if isinstance(target, dict) else {}
