"""``metadata.managedFields``: which writer owns which fields of an object.

A path is a tuple of segments in the notation of ``fieldsV1``: ``f:NAME`` is a field, ``k:{...}`` an
item of a keyed list, ``v:VALUE`` a member of a set. Maps are owned by field and keyed lists by
item; atomic lists and maps are owned as one unit.

A writer that applies or updates owns the fields that it changes. One exception keeps the hot path
cheap: updates of Gangline's own components are tracked only if some manager applied to the object.
The first apply to an untracked object assigns all existing fields to ``before-first-apply``, as
Kubernetes does for objects that predate managed fields.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec

from gangline.local.apiserver.machinery.patches import json_equal
from gangline.local.apiserver.machinery.schema.nodes import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    Json,
    field_schema,
)

FieldPath: TypeAlias = tuple[str, ...]
Schema: TypeAlias = Mapping[str, Any]

_EMPTY: Json = {}
_ENCODER = msgspec.json.Encoder(order="sorted")
_KEY_DEFAULTS = {"protocol": "TCP"}
"""Defaults of list keys that are missing in the schema because code sets them."""


class ListKeyError(ValueError):
    """A keyed list with missing or equal keys. The message contains the path and the reason."""


class FieldChanges(NamedTuple):
    """The fields in which two versions of an object differ."""

    changed: set[FieldPath]
    """Those that are new, too."""
    removed: set[FieldPath]


def diff_fields(old: Any, new: Any, schema: Schema) -> FieldChanges:
    """Return the fields in which two versions differ. Raises ListKeyError: items of a keyed list
    lack a key or share one.
    """
    changes = FieldChanges(set(), set())
    _compare(old, new, schema, (), changes)
    return changes


def is_granular_map(value: Any, schema: Schema) -> bool:
    """Return True if the value is a map that is owned field by field."""
    return isinstance(value, dict) and schema.get(MAP_TYPE) != "atomic"


def items_by_segment(value: Any, schema: Schema, path: FieldPath = ()) -> dict[str, Any] | None:
    """Return the items of a keyed list or set by their segment. Returns None for any other value.
    Raises ListKeyError: items lack a key or share one.
    """
    if not isinstance(value, list):
        return None
    segment = _segmenter(schema)
    if segment is None:
        return None
    items: dict[str, Any] = {}
    for item in value:
        own = segment(item, path)
        if own in items:
            raise ListKeyError(
                f"{format_path(path)}: duplicate entries for key {format_path((own,))}"
            )
        items[own] = item
    return items


def format_path(path: FieldPath) -> str:
    """Return a path as conflict messages contain it: ``.spec.containers[name="web"].image``."""
    return "".join(map(_show_segment, path))


def encode_fields(paths: Iterable[FieldPath]) -> Json:
    """Return a set of fields as ``fieldsV1``."""
    tree: Json = {}
    nodes = []
    for path in sorted(paths):
        node = tree
        for segment in path:
            node = node.setdefault(segment, {})
        nodes.append(node)
    for node in nodes:
        if node:
            node["."] = {}
    return tree


def field_tree(value: Any, schema: Schema) -> Json:
    """Return the ``fieldsV1`` of a value with all its fields and all their parents.

    Equal to encoding the ``changed`` fields of ``diff_fields``, in a fifth of the time: creations
    are frequent. Raises ListKeyError: items of a keyed list lack a key or share one.
    """
    tree: Json = {}
    if is_granular_map(value, schema):
        for name, child in value.items():
            # Most fields are scalars: no call for them, because every creation passes here.
            scalar = not isinstance(child, dict | list)
            tree[f"f:{name}"] = {} if scalar else field_tree(child, field_schema(schema, name))
    elif isinstance(value, list):
        item_schema = schema.get("items", _EMPTY)
        for segment, item in (items_by_segment(value, schema) or _EMPTY).items():
            tree[segment] = field_tree(item, item_schema)
    if tree:
        tree["."] = {}
    return tree


def decode_fields(tree: Any) -> set[FieldPath]:
    """Return the fields of a ``fieldsV1``. Entries that cannot be parsed are ignored."""
    return set(_decoded(tree, ()))


def _decoded(tree: Any, path: FieldPath) -> Iterator[FieldPath]:
    if not isinstance(tree, dict):
        return
    if path and (not tree or "." in tree):
        yield path
    for segment, below in tree.items():
        if segment[:2] in ("f:", "k:", "v:", "i:"):
            yield from _decoded(below, (*path, segment))


def _collect(
    value: Any, schema: Schema, path: FieldPath, paths: set[FieldPath], parents: bool
) -> None:
    """Add the fields of a value; with ``parents`` also the maps and items that contain them."""
    if is_granular_map(value, schema):
        if not value or parents:
            paths.add(path)
        named = schema.get("properties", _EMPTY)
        for name, child in value.items():
            below = (*path, f"f:{name}")
            _collect(child, field_schema(schema, name), below, paths, parents)
            # An entry of a map is owned itself, a field of a struct only through its leaves.
            if name not in named or child is None:
                paths.add(below)
        return
    items = items_by_segment(value, schema, path)
    if not items or parents:
        paths.add(path)
    item_schema = schema.get("items", _EMPTY)
    for segment, item in (items or _EMPTY).items():
        below = (*path, segment)
        _collect(item, item_schema, below, paths, parents)
        paths.add(below)


def _compare(old: Any, new: Any, schema: Schema, path: FieldPath, changes: FieldChanges) -> None:
    if is_granular_map(old, schema) and is_granular_map(new, schema):
        for name in {**old, **new}:
            _compare_part(old, new, name, field_schema(schema, name), (*path, f"f:{name}"), changes)
        return
    if old == new and json_equal(old, new):
        return
    before, after = items_by_segment(old, schema, path), items_by_segment(new, schema, path)
    if before is None or after is None:
        changes.changed.add(path)
        return
    item_schema = schema.get("items", _EMPTY)
    for segment in {**before, **after}:
        _compare_part(before, after, segment, item_schema, (*path, segment), changes)


def _compare_part(
    old: Json, new: Json, key: str, schema: Schema, path: FieldPath, changes: FieldChanges
) -> None:
    if key not in new:
        _collect(old[key], schema, path, changes.removed, parents=True)
    elif key not in old:
        _collect(new[key], schema, path, changes.changed, parents=True)
    else:
        _compare(old[key], new[key], schema, path, changes)


def _segmenter(schema: Schema) -> Callable[[Any, FieldPath], str] | None:
    if schema.get(LIST_TYPE) == "set":
        return lambda item, path: f"v:{_compact(item)}"
    keys = schema.get(MAP_KEYS)
    if schema.get(LIST_TYPE) != "map" or not keys:
        return None
    fields = schema.get("items", _EMPTY).get("properties", _EMPTY)
    defaults = [(key, _key_default(fields, key)) for key in keys]

    def segment(item: Any, path: FieldPath) -> str:
        if not isinstance(item, dict):
            raise ListKeyError(f"{format_path(path)}: an item of the keyed list is not an object")
        given = {
            name: item.get(name, default)
            for name, default in defaults
            if item.get(name, default) is not None
        }
        if not given:
            names = ", ".join(keys)
            raise ListKeyError(
                f"{format_path(path)}: an item of the keyed list lacks its key ({names})"
            )
        return f"k:{_compact(given)}"

    return segment


def _key_default(fields: Schema, key: str) -> Any:
    return fields.get(key, _EMPTY).get("default", _KEY_DEFAULTS.get(key))


def _compact(value: Any) -> str:
    return _ENCODER.encode(value).decode()


def _show_segment(segment: str) -> str:
    kind, rest = segment[:2], segment[2:]
    if kind == "f:":
        return f".{rest}"
    if kind == "v:":
        return f"[={rest}]"
    if kind == "k:":
        pairs = json.loads(rest).items()
        return "[" + ",".join(f"{name}={_compact(value)}" for name, value in pairs) + "]"
    return f"[{rest}]"


APPLY, UPDATE = "Apply", "Update"
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT_CHANGES = "ancient-changes"
OWN_COMPONENTS = "gangline"
MAX_UPDATE_MANAGERS = 10
MAX_MANAGER_CHARS = 128

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
"""Fields that only the server writes, and fields that identify the object."""


@dataclass(slots=True)
class ManagedFieldsEntry:
    """The fields of one manager. The first four fields identify the entry."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: set[FieldPath]
    encoded: Json | None = None
    """The stored form of ``fields``; None if they have changed. Encoding takes long."""

    def remove(self, fields: set[FieldPath]) -> None:
        """Give up fields. The time does not depend on their number, only on that of the entry's
        own: an object may have many entries.
        """
        left = {path for path in self.fields if path not in fields}
        if len(left) < len(self.fields):
            self.fields, self.encoded = left, None

    def add(self, fields: set[FieldPath]) -> None:
        """Get fields."""
        if not fields <= self.fields:
            self.fields, self.encoded = self.fields | fields, None

    def to_json(self) -> Json:
        entry: Json = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
        }
        if self.time:
            entry["time"] = self.time
        fields = encode_fields(self.fields) if self.encoded is None else self.encoded
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": fields}
        return {**entry, "subresource": self.subresource} if self.subresource else entry


def manager_name(user_agent: str, field_manager: str = "") -> str:
    """Return the name of a writer: its field manager, else the program of its user agent."""
    return (field_manager or user_agent.partition("/")[0] or "unknown")[:MAX_MANAGER_CHARS]


def should_track(old: Json | None, manager: str, api_version: str = "") -> bool:
    """Return False for an update of our own components to an object without an applier.

    A creation in another version than that of storage (``api_version``) is tracked: its entry is
    the only record of the version.
    """
    if not manager.startswith(OWN_COMPONENTS) or (old is None and api_version):
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
    api_version: str = "",
) -> None:
    """Set the managed fields of ``new`` in place after a creation, an update or a patch.

    Args:
        old: the object before; None: it is created.
        new: the object, in the version of storage.
        schema: the schema of the version that was written.
        manager: the writer.
        now: the time.
        subresource: the written subresource.
        api_version: the version that was written, where fields are the same in all; empty: that of
            storage.

    A client resets them with ``managedFields: [{}]``, and keeps them by sending none.
    """
    sent = managed_fields(new)
    kept = sent or (managed_fields(old) if old is not None else [])
    if not should_track(old, manager, api_version) or sent == [{}]:
        _set_managed_fields(new, [] if sent == [{}] else kept)
        return
    try:
        if old is None and not kept:
            named = {**new, "apiVersion": api_version} if api_version else new
            _set_managed_fields(new, _creation_entries(named, schema, manager, now, subresource))
            return
        changes = diff_fields(old if old is not None else {}, new, schema)
        # Only the server's own form may be stored again as it is.
        stored = old is not None and kept == managed_fields(old)
        entries = parse_entries(kept, stored=stored)
        if not entries and old is not None:
            entries = [entry_before_first_apply(old, schema, now)]
    except ListKeyError:
        _set_managed_fields(new, kept)  # Validation reports such a list.
        return
    changed = ownable_fields(changes.changed)
    api_version = api_version or str(new.get("apiVersion", ""))
    own_entry = find_or_add_entry(entries, manager, UPDATE, subresource, api_version)
    changed_by_manager = changed | changes.removed
    for entry in entries:
        entry.remove(changes.removed if entry is own_entry else changed_by_manager)
    if changed:
        own_entry.time = format_entry_time(now)
        own_entry.add(changed)
    store_entries(new, entries)


def managed_fields(obj: Json) -> list[Any]:
    metadata = obj.get("metadata")
    entries = metadata.get("managedFields") if isinstance(metadata, dict) else None
    return entries if isinstance(entries, list) else []


def parse_entries(values: Iterable[Any], *, stored: bool = False) -> list[ManagedFieldsEntry]:
    """Parse managed fields. Invalid entries are ignored, and all but the last of equal ones.

    ``stored`` means that this server has written them.
    """
    entries: dict[tuple[str, str, str, str, str], ManagedFieldsEntry] = {}
    for value in values:
        if not isinstance(value, dict) or value.get("operation") not in (APPLY, UPDATE):
            continue
        entry = ManagedFieldsEntry(
            str(value.get("manager", "")),
            str(value.get("operation", "")),
            str(value.get("apiVersion", "")),
            str(value.get("subresource", "")),
            str(value.get("time", "")),
            decode_fields(value.get("fieldsV1")),
            value.get("fieldsV1") if stored else None,
        )
        # The identity of an entry in Kubernetes: an applier has one for all times.
        time = entry.time if entry.operation == UPDATE else ""
        entries[(entry.manager, entry.operation, entry.api_version, entry.subresource, time)] = (
            entry
        )
    return list(entries.values())


def find_or_add_entry(
    entries: list[ManagedFieldsEntry],
    manager: str,
    operation: str,
    subresource: str,
    api_version: str,
) -> ManagedFieldsEntry:
    """Return the entry of a manager. A missing entry is appended to ``entries``."""
    for entry in entries:
        same = (entry.manager, entry.operation) == (manager, operation)
        # As in Kubernetes, one manager that updates in two versions has two entries.
        same = same and (operation == APPLY or entry.api_version == api_version)
        if same and entry.subresource == subresource:
            entry.api_version = api_version
            return entry
    entries.append(ManagedFieldsEntry(manager, operation, api_version, subresource, "", set()))
    return entries[-1]


def entry_before_first_apply(live: Json, schema: Schema, now: datetime) -> ManagedFieldsEntry:
    """Return the entry for fields that were written while the object was not tracked."""
    fields = owned_fields(live, schema)
    version = str(live.get("apiVersion", ""))
    return ManagedFieldsEntry(
        BEFORE_FIRST_APPLY, UPDATE, version, "", format_entry_time(now), fields
    )


def owned_fields(obj: Json, schema: Schema) -> set[FieldPath]:
    """Return the fields that a manager owns after applying this object. Raises ListKeyError: items
    of a keyed list lack a key or share one.
    """
    paths: set[FieldPath] = set()
    _collect(obj, schema, (), paths, parents=False)
    return ownable_fields(paths)


def ownable_fields(paths: set[FieldPath]) -> set[FieldPath]:
    return {path for path in paths if path[:2] not in _NOT_OWNED}


def store_entries(obj: Json, entries: Iterable[ManagedFieldsEntry]) -> None:
    """Write entries into an object in place: appliers first, then by age, with a maximum count."""
    live = _merge_old_updates([entry for entry in entries if entry.fields])
    live.sort(key=lambda entry: (entry.operation, entry.time, entry.manager, entry.subresource))
    _set_managed_fields(obj, [entry.to_json() for entry in live])


def format_entry_time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _creation_entries(
    new: Json, schema: Schema, manager: str, now: datetime, subresource: str
) -> list[Any]:
    tree = field_tree(new, schema)
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
    entry = ManagedFieldsEntry(manager, UPDATE, version, subresource, format_entry_time(now), set())
    return [{**entry.to_json(), "fieldsV1": tree}] if tree else []


def _merge_old_updates(entries: list[ManagedFieldsEntry]) -> list[ManagedFieldsEntry]:
    updates = sorted((e for e in entries if e.operation == UPDATE), key=lambda entry: entry.time)
    surplus = len(updates) - MAX_UPDATE_MANAGERS
    if surplus <= 0:
        return entries
    old = [
        entry
        for place, entry in enumerate(updates)
        if entry.manager == ANCIENT_CHANGES or place <= surplus
    ]
    merged = {id(entry) for entry in old}
    newest = old[-1]
    fields = set[FieldPath]().union(*(entry.fields for entry in old))
    ancient = ManagedFieldsEntry(
        ANCIENT_CHANGES, UPDATE, newest.api_version, "", newest.time, fields
    )
    return [*(entry for entry in entries if id(entry) not in merged), ancient]


def _set_managed_fields(obj: Json, written: list[Any]) -> None:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return
    if written:
        metadata["managedFields"] = written
    else:
        metadata.pop("managedFields", None)
