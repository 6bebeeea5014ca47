"""Server-side apply: merges the configuration of a manager and records which fields it owns.

Applying merges the configuration into the object and removes fields that the manager applied
before and now omits, unless another manager owns them. A change to a field of another manager is a
conflict, unless forced. A field with equal values in several configurations is owned by all of
their managers.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from gangline.api.meta import StatusCause
from gangline.local.apiserver.machinery.applied import merge_applied, remove_fields
from gangline.local.apiserver.machinery.field_sets import (
    FieldPath,
    ListKeyError,
    Schema,
    diff_fields,
    format_path,
)
from gangline.local.apiserver.machinery.ownership import (
    APPLY,
    UPDATE,
    ManagedFieldsEntry,
    entry_before_first_apply,
    parse_entries,
    find_or_add_entry,
    managed_fields,
    owned_fields,
    format_entry_time,
    store_entries,
    ownable_fields,
)
from gangline.local.apiserver.machinery.schemas import Json

__all__ = ["ApplyConflict", "ApplyError", "server_side_apply"]

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
    try:
        return _apply(live or {}, applied, schema, manager, now, force, subresource)
    except ListKeyError as error:
        raise ApplyError(f"failed to create typed patch object: {error}") from error


def _apply(
    live: Json,
    applied: Json,
    schema: Schema,
    manager: str,
    now: datetime,
    force: bool,
    subresource: str,
) -> Json:
    entries = parse_entries(managed_fields(live))
    if live and not entries:
        entries.append(entry_before_first_apply(live, schema, now))
    own = owned_fields(applied, schema)
    version = str(applied.get("apiVersion", ""))
    mine = find_or_add_entry(entries, manager, APPLY, subresource, version)
    others = [entry for entry in entries if entry is not mine]

    kept = own.union(*(entry.fields for entry in others))
    result = remove_fields(merge_applied(live, applied, schema), mine.fields - own, kept, schema)

    found = diff_fields(live, result, schema)
    changed = ownable_fields(found.added | found.modified)
    conflicts = [(each, path) for each in others for path in sorted(each.fields & changed)]
    if (
        conflicts
        and not force
        and not _owned_by_client_side_apply(live, schema, manager, conflicts)
    ):
        raise ApplyConflict(conflicts)
    for entry in others:
        entry.fields -= changed | found.removed
    if own != mine.fields or changed or found.removed:
        mine.fields, mine.time = own, format_entry_time(now)
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
        return f"Apply failed with 1 conflict: conflict with {_manager_text(entry)}: {format_path(path)}"
    paths: dict[str, list[str]] = {}
    for entry, path in conflicts:
        paths.setdefault(_manager_text(entry), []).append(f"- {format_path(path)}")
    lines = [line for each in sorted(paths) for line in (f"conflicts with {each}:", *paths[each])]
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


def _manager_text(entry: ManagedFieldsEntry) -> str:
    text = json.dumps(entry.manager)
    if entry.subresource:
        text += f' with subresource "{entry.subresource}"'
    if entry.operation == UPDATE:
        text += f" using {entry.api_version}"
        text += f" at {entry.time}" if entry.time else ""
    return text
