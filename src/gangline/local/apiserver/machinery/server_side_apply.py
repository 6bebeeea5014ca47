"""Server-side apply: merges the configuration of a manager and records which fields it owns.

Applying merges the configuration into the object (``merge_applied``) and removes fields that the
manager applied before and now omits (``remove_fields``), unless another manager owns them. A change
to a field of another manager is a conflict, unless forced. A field with equal values in several
configurations is owned by all of their managers. Results share nothing with the arguments.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from gangline.api.meta.objects import StatusCause
from gangline.local.apiserver.machinery.managed_fields import (
    APPLY,
    UPDATE,
    FieldPath,
    ListKeyError,
    ManagedFieldsEntry,
    Schema,
    diff_fields,
    encode_fields,
    entry_before_first_apply,
    find_or_add_entry,
    format_entry_time,
    format_path,
    is_granular_map,
    items_by_segment,
    managed_fields,
    ownable_fields,
    owned_fields,
    parse_entries,
    store_entries,
)
from gangline.local.apiserver.machinery.schema.nodes import MAP_KEYS, Json, copy_json, field_schema

__all__ = ["ApplyConflict", "ApplyError", "server_side_apply"]


def merge_applied(live: Any, applied: Any, schema: Schema) -> Any:
    """Merge ``applied`` into ``live``: maps by field, keyed lists by item, sets by union. Raises
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
    live_items, applied_items = items_by_segment(live, schema), items_by_segment(applied, schema)
    if not live_items or applied_items is None:
        return copy_json(applied)
    item_schema = schema.get("items", {})
    return [
        merge_applied(live_items[segment], applied_items[segment], item_schema)
        if segment in live_items and segment in applied_items
        else copy_json(applied_items[segment] if segment in applied_items else live_items[segment])
        for segment in _merged_order(live_items, applied_items)
    ]


def remove_fields(
    obj: Json, fields: Iterable[FieldPath], retained: set[FieldPath], schema: Schema
) -> Json:
    """Return the object without ``fields``, and without the containers that become empty.

    A field stays if another manager owns it or a field below it. The keys of remaining list items
    stay as well. A field that the schema names belongs to who owned a field below it: defaults in
    it, which nobody owns, are removed with it (``EnsureNamedFieldsAreMembers`` of Kubernetes).
    """
    retained_paths: set[FieldPath] = set()
    for path in retained:
        # From the longest: once a prefix is known, so are all shorter ones.
        for length in range(len(path), 0, -1):
            if path[:length] in retained_paths:
                break
            retained_paths.add(path[:length])
    removed = {path for path in fields if path not in retained_paths}
    result: Json = _remove_tree(obj, encode_fields(removed), schema, (), retained_paths)
    return result


def _merged_order(live_items: Json, applied_items: Json) -> list[str]:
    """Merge two orders: items keep the server's position, shared items take the applied order."""
    result: list[str] = []
    coming = iter(applied_items)
    for segment in live_items:
        if segment not in applied_items:
            result.append(segment)
            continue
        # The next shared item takes this position, preceded by new applied items.
        for applied in coming:
            result.append(applied)
            if applied in live_items:
                break
    return [*result, *coming]


def _remove_tree(
    value: Any, tree: Json, schema: Schema, path: FieldPath, retained_paths: set[FieldPath]
) -> Any:
    if is_granular_map(value, schema):
        required, named = schema.get("required", ()), schema.get("properties", {})
        result = {}
        for name, child in value.items():
            segment = f"f:{name}"
            item_schema, below = field_schema(schema, name), (*path, segment)
            left = _remaining(child, tree.get(segment), item_schema, below, retained_paths)
            if segment in tree and name in named and below not in retained_paths:
                left = _REMOVED
            if left is not _REMOVED or (name in required and path):
                result[name] = copy_json(child) if left is _REMOVED else left
        return result
    items = items_by_segment(value, schema)
    if items is None:
        return copy_json(value)
    item_schema = schema.get("items", {})
    remaining = []
    for segment, item in items.items():
        left = _remaining(item, tree.get(segment), item_schema, (*path, segment), retained_paths)
        if left is not _REMOVED:
            if isinstance(left, dict):
                left |= {key: item[key] for key in schema.get(MAP_KEYS, ()) if key in item}
            remaining.append(left)
    return remaining


def _remaining(
    child: Any, tree: Json | None, schema: Schema, path: FieldPath, retained_paths: set[FieldPath]
) -> Any:
    if tree is None:
        return copy_json(child)
    if not tree or "." in tree:
        return _REMOVED
    left = _remove_tree(child, tree, schema, path, retained_paths)
    return _REMOVED if child and not left and path not in retained_paths else left


_REMOVED: Any = object()


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"

FieldConflict: TypeAlias = tuple[ManagedFieldsEntry, FieldPath]


class ApplyError(Exception):
    """The configuration cannot be applied to any object; HTTP 400."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ApplyConflict(Exception):
    """The configuration would change fields of other managers; HTTP 409, reason Conflict."""

    def __init__(self, conflicts: Sequence[FieldConflict]) -> None:
        self.message = _conflict_message(conflicts)
        self.causes = [
            StatusCause(
                "FieldManagerConflict", f"conflict with {_manager_text(entry)}", format_path(path)
            )
            for entry, path in conflicts
        ]
        super().__init__(self.message)


def server_side_apply(
    live: Json | None,
    applied: Json,
    schema: Schema,
    *,
    manager: str,
    now: datetime,
    force: bool = False,
    subresource: str = "",
) -> Json:
    """Return the object after a manager applied its configuration. ``live`` is None for a new
    object.

    The caller removes from ``applied`` what the request may not write (the status, or all but the
    status). A result equal to ``live`` is not a write.

    Raises:
        ApplyError: the configuration has managed fields, or lists that cannot be merged.
        ApplyConflict: it changes fields of other managers and is not forced.
    """
    if managed_fields(applied):
        raise ApplyError("metadata.managedFields must be nil")
    live = live or {}
    entries = parse_entries(managed_fields(live))
    try:
        if live and not entries:
            entries.append(entry_before_first_apply(live, schema, now))
        own = owned_fields(applied, schema)
        version = str(applied.get("apiVersion", ""))
        own_entry = find_or_add_entry(entries, manager, APPLY, subresource, version)
        others = [entry for entry in entries if entry is not own_entry]
        kept = own.union(*(entry.fields for entry in others))
        merged = merge_applied(live, applied, schema)
        result = remove_fields(merged, own_entry.fields - own, kept, schema)
        changes = diff_fields(live, result, schema)
    except ListKeyError as error:
        raise ApplyError(f"failed to create typed patch object: {error}") from error
    changed = ownable_fields(changes.changed)
    conflicts = [(other, path) for other in others for path in sorted(other.fields & changed)]
    if (
        conflicts
        and not force
        and not _owned_by_client_side_apply(live, schema, manager, conflicts)
    ):
        raise ApplyConflict(conflicts)
    changed_by_manager = changed | changes.removed
    for entry in others:
        entry.remove(changed_by_manager)
    if own != own_entry.fields or changed or changes.removed:
        own_entry.fields, own_entry.time = own, format_entry_time(now)
    store_entries(result, entries)
    return result


def _owned_by_client_side_apply(
    live: Json, schema: Schema, manager: str, conflicts: Sequence[FieldConflict]
) -> bool:
    """Return True if all conflicts are with an earlier client-side ``kubectl apply``.

    Its last-applied annotation lists the fields. kubectl may take them over without force.
    """
    if manager != KUBECTL:
        return False
    try:
        last = json.loads(live["metadata"]["annotations"][LAST_APPLIED])
        previous = owned_fields(last, schema)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return all(entry.operation == UPDATE and path in previous for entry, path in conflicts)


def _conflict_message(conflicts: Sequence[FieldConflict]) -> str:
    if len(conflicts) == 1:
        entry, path = conflicts[0]
        manager = _manager_text(entry)
        return f"Apply failed with 1 conflict: conflict with {manager}: {format_path(path)}"
    paths: dict[str, list[str]] = {}
    for entry, path in conflicts:
        paths.setdefault(_manager_text(entry), []).append(f"- {format_path(path)}")
    lines = [
        line
        for manager in sorted(paths)
        for line in (f"conflicts with {manager}:", *paths[manager])
    ]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def _manager_text(entry: ManagedFieldsEntry) -> str:
    text = json.dumps(entry.manager)
    if entry.subresource:
        text += f' with subresource "{entry.subresource}"'
    if entry.operation == UPDATE:
        text += f" using {entry.api_version}"
        text += f" at {entry.time}" if entry.time else ""
    return text
