"""Who manages which fields of an object: the entries of ``metadata.managedFields``.

Every writer but one applies or updates and so comes to own what it changes. The exception keeps
the hot path cheap: our own components' updates are not tracked unless somebody applies to the
object. The first apply to an untracked object gives all that is there to ``before-first-apply``,
as Kubernetes does for objects from before managed fields existed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gangline.local.apiserver.machinery.field_sets import (
    FieldPath,
    ListKeyError,
    Schema,
    changes,
    decode,
    encode,
    field_set,
    tree_of,
)
from gangline.local.apiserver.machinery.schemas import Json

APPLY, UPDATE = "Apply", "Update"
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT = "ancient-changes"
OWN_COMPONENTS = "gangline"
MAX_UPDATE_MANAGERS = 10
LONGEST_NAME = 128

_META = "f:metadata"
_NOT_OWNED: set[FieldPath] = {("f:apiVersion",), ("f:kind",), (_META,)} | {
    (_META, f"f:{name}")
    for name in (
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "selfLink",
        "uid",
    )
}
"""What only the server writes, or what says which object it is."""


@dataclass(slots=True)
class Entry:
    """The fields of one manager; the first four say which manager, of two with one name."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: set[FieldPath]

    def written(self) -> Json:
        """Return the entry as it stands in an object."""
        entry = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode(self.fields),
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry


def manager_of(user_agent: str, field_manager: str = "") -> str:
    """Return the name of a writer: as it calls itself, else the program of its user agent."""
    return (field_manager or user_agent.partition("/")[0] or "unknown")[:LONGEST_NAME]


def worth_tracking(old: Json | None, manager: str) -> bool:
    """Whether an update is tracked: not by our own components, unless somebody applies."""
    if not manager.startswith(OWN_COMPONENTS):
        return True
    entries = managed_fields(old) if old is not None else []
    return any(entry.get("operation") == APPLY for entry in entries if isinstance(entry, dict))


def track_update(
    old: Json | None,
    new: Json,
    schema: Schema,
    *,
    manager: str,
    now: datetime,
    subresource: str = "",
) -> None:
    """Write, in place, who owns the fields of ``new`` after a creation, an update or a patch.

    A client that sends ``managedFields: [{}]`` resets them; one that sends none keeps them.
    """
    sent = managed_fields(new)
    kept = sent or (managed_fields(old) if old is not None else [])
    if not worth_tracking(old, manager) or sent == [{}]:
        _store(new, [] if sent == [{}] else kept)
        return
    try:
        if old is None and not kept:
            _store(new, _of_creation(new, schema, manager, now, subresource))
            return
        found = changes(old if old is not None else {}, new, schema)
        entries = entries_of(kept)
        if not entries and old is not None:
            entries = [before_first_apply(old, schema, now)]
    except ListKeyError:
        _store(new, kept)  # Validation complains of such a list; ownership has nothing to add.
        return
    changed = without_unowned(found.added | found.modified)
    api_version = str(new.get("apiVersion", ""))
    mine = entry_for(entries, manager, UPDATE, subresource, api_version)
    for entry in entries:
        entry.fields -= found.removed
        if entry is not mine:
            entry.fields -= changed
    if changed:
        mine.time = stamp(now)
        mine.fields |= changed
    store_entries(new, entries)


def managed_fields(obj: Json) -> list[Any]:
    """Return the entries as they stand in an object."""
    metadata = obj.get("metadata")
    found = metadata.get("managedFields") if isinstance(metadata, dict) else None
    return found if isinstance(found, list) else []


def entries_of(written: Iterable[Any]) -> list[Entry]:
    """Read entries; those that are none are left out."""
    return [
        Entry(
            str(entry.get("manager", "")),
            str(entry.get("operation", "")),
            str(entry.get("apiVersion", "")),
            str(entry.get("subresource", "")),
            str(entry.get("time", "")),
            decode(entry.get("fieldsV1")),
        )
        for entry in written
        if isinstance(entry, dict) and entry.get("operation") in (APPLY, UPDATE)
    ]


def entry_for(
    entries: list[Entry], manager: str, operation: str, subresource: str, api_version: str
) -> Entry:
    """Return a manager's entry, added to the others when it has none yet."""
    for entry in entries:
        same = (entry.manager, entry.operation) == (manager, operation)
        if same and entry.subresource == subresource:
            entry.api_version = api_version
            return entry
    entries.append(Entry(manager, operation, api_version, subresource, "", set()))
    return entries[-1]


def before_first_apply(live: Json, schema: Schema, now: datetime) -> Entry:
    """Return the entry of those who wrote an object while nobody kept count."""
    fields = owned_by_applying(live, schema)
    version = str(live.get("apiVersion", ""))
    return Entry(BEFORE_FIRST_APPLY, UPDATE, version, "", stamp(now), fields)


def owned_by_applying(obj: Json, schema: Schema) -> set[FieldPath]:
    """Return what an applier of this object owns.

    Raises:
        ListKeyError: items of a keyed list lack a key or share one.
    """
    return without_unowned(field_set(obj, schema))


def without_unowned(paths: set[FieldPath]) -> set[FieldPath]:
    """Return the paths that anybody can own."""
    return {path for path in paths if path[:2] not in _NOT_OWNED}


def store_entries(obj: Json, entries: Iterable[Entry]) -> None:
    """Write entries into an object, in place: appliers first, then by age; few of them."""
    live = _capped([entry for entry in entries if entry.fields])
    live.sort(key=lambda entry: (entry.operation, entry.time, entry.manager, entry.subresource))
    _store(obj, [entry.written() for entry in live])


def stamp(now: datetime) -> str:
    """Return a time as entries carry it."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_creation(
    new: Json, schema: Schema, manager: str, now: datetime, subresource: str
) -> list[Any]:
    tree = tree_of(new, schema)
    tree.pop(".", None)
    metadata = tree.get(_META, {})
    for path in _NOT_OWNED:
        if path[0] != _META:
            tree.pop(path[0], None)
        elif len(path) == 2:
            metadata.pop(path[1], None)
    metadata.pop(".", None)
    if not metadata:
        tree.pop(_META, None)
    version = str(new.get("apiVersion", ""))
    entry = Entry(manager, UPDATE, version, subresource, stamp(now), set())
    return [{**entry.written(), "fieldsV1": tree}] if tree else []


def _capped(entries: list[Entry]) -> list[Entry]:
    updates = sorted((e for e in entries if e.operation == UPDATE), key=lambda entry: entry.time)
    surplus = len(updates) - MAX_UPDATE_MANAGERS
    if surplus <= 0:
        return entries
    old = [
        entry for entry in updates if entry.manager == ANCIENT or entry in updates[: surplus + 1]
    ]
    newest = old[-1]
    fields = set[FieldPath]().union(*(entry.fields for entry in old))
    ancient = Entry(ANCIENT, UPDATE, newest.api_version, "", newest.time, fields)
    return [*(entry for entry in entries if entry not in old), ancient]


def _store(obj: Json, written: list[Any]) -> None:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return
    if written:
        metadata["managedFields"] = written
    else:
        metadata.pop("managedFields", None)
