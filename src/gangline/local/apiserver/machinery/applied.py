"""The two movements of server-side apply: laying a configuration over an object, taking fields off.

Both return new objects and share nothing with what they were given.
"""

from collections.abc import Iterable
from typing import Any

from gangline.local.apiserver.machinery.field_sets import (
    FieldPath,
    Schema,
    encode,
    is_map,
    items_by_segment,
    schema_of,
)
from gangline.local.apiserver.machinery.schemas import MAP_KEYS, Json, copied


def laid_over(live: Any, applied: Any, schema: Schema) -> Any:
    """Return ``live`` with all that ``applied`` says: maps merge, keyed lists by item, sets unite.

    Raises:
        ListKeyError: items of a keyed list lack a key or share one.
    """
    if is_map(live, schema) and is_map(applied, schema):
        merged = {}
        for name in {**live, **applied}:
            if name in live and name in applied:
                below = schema_of(schema, name)
                merged[name] = laid_over(live[name], applied[name], below)
            else:
                merged[name] = copied(applied[name] if name in applied else live[name])
        return merged
    ours, theirs = items_by_segment(live, schema), items_by_segment(applied, schema)
    if not ours or theirs is None:
        return copied(applied)
    of = schema.get("items", {})
    return [
        laid_over(ours[segment], theirs[segment], of)
        if segment in ours and segment in theirs
        else copied(theirs[segment] if segment in theirs else ours[segment])
        for segment in _order(ours, theirs)
    ]


def taken_off(obj: Json, fields: Iterable[FieldPath], kept: set[FieldPath], schema: Schema) -> Json:
    """Return the object without some fields, and without what becomes empty by that.

    A field stays when ``kept`` (which belongs to others) holds it or something below it; so do
    the keys of list items that stay.
    """
    stays = {path[:length] for path in kept for length in range(1, len(path) + 1)}
    gone = {path for path in fields if path not in stays}
    result: Json = _without(obj, encode(gone), schema, (), stays)
    return result


def _order(ours: Json, theirs: Json) -> list[str]:
    """Items keep the server's places; those that both know take the order of the applied list."""
    result: list[str] = []
    coming = iter(theirs)
    for segment in ours:
        if segment not in theirs:
            result.append(segment)
            continue
        # This place belongs to the next item that both know; new ones before it go along.
        for applied in coming:
            result.append(applied)
            if applied in ours:
                break
    return [*result, *coming]


def _without(value: Any, tree: Json, schema: Schema, path: FieldPath, stays: set[FieldPath]) -> Any:
    if is_map(value, schema):
        required = schema.get("required", ())
        result = {}
        for name, child in value.items():
            segment = f"f:{name}"
            of, below = schema_of(schema, name), (*path, segment)
            left = _left(child, tree.get(segment), of, below, stays)
            if left is not _GONE or (name in required and path):
                result[name] = copied(child) if left is _GONE else left
        return result
    items = items_by_segment(value, schema)
    if items is None:
        return copied(value)
    of = schema.get("items", {})
    remaining = []
    for segment, item in items.items():
        left = _left(item, tree.get(segment), of, (*path, segment), stays)
        if left is not _GONE:
            if isinstance(left, dict):
                left |= {key: item[key] for key in schema.get(MAP_KEYS, ()) if key in item}
            remaining.append(left)
    return remaining


def _left(
    child: Any, tree: Json | None, schema: Schema, path: FieldPath, stays: set[FieldPath]
) -> Any:
    if tree is None:
        return copied(child)
    if not tree or "." in tree:
        return _GONE
    left = _without(child, tree, schema, path, stays)
    return _GONE if child and not left and path not in stays else left


_GONE: Any = object()
