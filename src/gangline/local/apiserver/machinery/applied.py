"""The two operations of server-side apply: merging a configuration, and removing fields.

Both return new objects that share nothing with their arguments.
"""

from collections.abc import Iterable
from typing import Any

from gangline.local.apiserver.machinery.field_sets import (
    FieldPath,
    Schema,
    encode_fields,
    is_granular_map,
    items_by_segment,
    field_schema,
)
from gangline.local.apiserver.machinery.schemas import MAP_KEYS, Json, copy_json


def merge_applied(live: Any, applied: Any, schema: Schema) -> Any:
    """Merge ``applied`` into ``live``: maps by field, keyed lists by item, sets by union.

    Raises:
        ListKeyError: items of a keyed list lack a key or share one.
    """
    if is_granular_map(live, schema) and is_granular_map(applied, schema):
        merged = {}
        for name in {**live, **applied}:
            if name in live and name in applied:
                below = field_schema(schema, name)
                merged[name] = merge_applied(live[name], applied[name], below)
            else:
                merged[name] = copy_json(applied[name] if name in applied else live[name])
        return merged
    ours, theirs = items_by_segment(live, schema), items_by_segment(applied, schema)
    if not ours or theirs is None:
        return copy_json(applied)
    of = schema.get("items", {})
    return [
        merge_applied(ours[segment], theirs[segment], of)
        if segment in ours and segment in theirs
        else copy_json(theirs[segment] if segment in theirs else ours[segment])
        for segment in _merged_order(ours, theirs)
    ]


def remove_fields(
    obj: Json, fields: Iterable[FieldPath], retained: set[FieldPath], schema: Schema
) -> Json:
    """Return the object without ``fields``, and without the containers that become empty.

    A field stays if another manager owns it or a field below it. The keys of remaining list items
    stay as well.
    """
    stays = {path[:length] for path in retained for length in range(1, len(path) + 1)}
    gone = {path for path in fields if path not in stays}
    result: Json = _remove_tree(obj, encode_fields(gone), schema, (), stays)
    return result


def _merged_order(ours: Json, theirs: Json) -> list[str]:
    """Merge two orders: items keep the server's position, shared items take the applied order."""
    result: list[str] = []
    coming = iter(theirs)
    for segment in ours:
        if segment not in theirs:
            result.append(segment)
            continue
        # The next shared item takes this position, preceded by new applied items.
        for applied in coming:
            result.append(applied)
            if applied in ours:
                break
    return [*result, *coming]


def _remove_tree(
    value: Any, tree: Json, schema: Schema, path: FieldPath, stays: set[FieldPath]
) -> Any:
    if is_granular_map(value, schema):
        required = schema.get("required", ())
        result = {}
        for name, child in value.items():
            segment = f"f:{name}"
            of, below = field_schema(schema, name), (*path, segment)
            left = _remaining(child, tree.get(segment), of, below, stays)
            if left is not _REMOVED or (name in required and path):
                result[name] = copy_json(child) if left is _REMOVED else left
        return result
    items = items_by_segment(value, schema)
    if items is None:
        return copy_json(value)
    of = schema.get("items", {})
    remaining = []
    for segment, item in items.items():
        left = _remaining(item, tree.get(segment), of, (*path, segment), stays)
        if left is not _REMOVED:
            if isinstance(left, dict):
                left |= {key: item[key] for key in schema.get(MAP_KEYS, ()) if key in item}
            remaining.append(left)
    return remaining


def _remaining(
    child: Any, tree: Json | None, schema: Schema, path: FieldPath, stays: set[FieldPath]
) -> Any:
    if tree is None:
        return copy_json(child)
    if not tree or "." in tree:
        return _REMOVED
    left = _remove_tree(child, tree, schema, path, stays)
    return _REMOVED if child and not left and path not in stays else left


_REMOVED: Any = object()
