"""Sets of fields of an object: the unit of ownership in server-side apply.

A path is a tuple of segments in the notation of ``fieldsV1``: ``f:NAME`` is a field, ``k:{...}`` an
item of a keyed list, ``v:VALUE`` a member of a set. Maps are owned by field and keyed lists by
item; atomic lists and maps are owned as one unit.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from gangline.local.apiserver.machinery.patch.json_patch import json_equal
from gangline.local.apiserver.machinery.schema.nodes import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    Json,
    additional_properties,
)

FieldPath: TypeAlias = tuple[str, ...]
Schema: TypeAlias = Mapping[str, Any]

_EMPTY: Json = {}
_ENCODER = msgspec.json.Encoder(order="sorted")
_KEY_DEFAULTS = {"protocol": "TCP"}
"""Defaults of list keys that are missing in the schema because code sets them."""


class ListKeyError(ValueError):
    """A keyed list with missing or equal keys. The message contains the path and the reason."""


@dataclass(slots=True)
class FieldChanges:
    """The fields in which two versions of an object differ."""

    added: set[FieldPath] = field(default_factory=set)
    modified: set[FieldPath] = field(default_factory=set)
    removed: set[FieldPath] = field(default_factory=set)


def field_set(value: Json, schema: Schema) -> set[FieldPath]:
    """Return the fields that a manager owns after it applied this object.

    Raises:
        ListKeyError: items of a keyed list lack a key or share one.
    """
    found: set[FieldPath] = set()
    _collect(value, schema, (), found, parents=False)
    return found


def diff_fields(old: Any, new: Any, schema: Schema) -> FieldChanges:
    """Return the fields in which two versions differ.

    Raises:
        ListKeyError: items of a keyed list lack a key or share one.
    """
    found = FieldChanges()
    _compare(old, new, schema, (), found)
    return found


def field_schema(schema: Schema, name: str) -> Schema:
    """Return the schema of a field, or an empty one if the schema does not describe it."""
    found: Schema | None = schema.get("properties", _EMPTY).get(name)
    return found if found is not None else additional_properties(schema) or _EMPTY


def is_granular_map(value: Any, schema: Schema) -> bool:
    """Return True if the value is a map that is owned field by field."""
    return isinstance(value, dict) and schema.get(MAP_TYPE) != "atomic"


def items_by_segment(value: Any, schema: Schema, path: FieldPath = ()) -> dict[str, Any] | None:
    """Return the items of a keyed list or set by their segment. Returns None for any other value.

    Raises:
        ListKeyError: items lack a key or share one.
    """
    if not isinstance(value, list):
        return None
    segment = _segmenter(schema)
    if segment is None:
        return None
    found: dict[str, Any] = {}
    for item in value:
        own = segment(item, path)
        if own in found:
            raise ListKeyError(
                f"{format_path(path)}: duplicate entries for key {format_path((own,))}"
            )
        found[own] = item
    return found


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

    Equal to encoding the ``added`` fields of ``diff_fields``, in a fifth of the time: creations are
    frequent.

    Raises:
        ListKeyError: items of a keyed list lack a key or share one.
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
    value: Any, schema: Schema, path: FieldPath, found: set[FieldPath], parents: bool
) -> None:
    """Add the fields of a value; with ``parents`` also the maps and items that contain them."""
    if is_granular_map(value, schema):
        if not value or parents:
            found.add(path)
        named = schema.get("properties", _EMPTY)
        for name, child in value.items():
            below = (*path, f"f:{name}")
            _collect(child, field_schema(schema, name), below, found, parents)
            # An entry of a map is owned itself, a field of a struct only through its leaves.
            if name not in named or child is None:
                found.add(below)
        return
    items = items_by_segment(value, schema, path)
    if not items or parents:
        found.add(path)
    item_schema = schema.get("items", _EMPTY)
    for segment, item in (items or _EMPTY).items():
        below = (*path, segment)
        _collect(item, item_schema, below, found, parents)
        found.add(below)


def _compare(old: Any, new: Any, schema: Schema, path: FieldPath, found: FieldChanges) -> None:
    if is_granular_map(old, schema) and is_granular_map(new, schema):
        for name in {**old, **new}:
            _compare_part(old, new, name, field_schema(schema, name), (*path, f"f:{name}"), found)
        return
    if old == new and json_equal(old, new):
        return
    before, after = items_by_segment(old, schema, path), items_by_segment(new, schema, path)
    if before is None or after is None:
        found.modified.add(path)
        return
    item_schema = schema.get("items", _EMPTY)
    for segment in {**before, **after}:
        _compare_part(before, after, segment, item_schema, (*path, segment), found)


def _compare_part(
    old: Json, new: Json, key: str, schema: Schema, path: FieldPath, found: FieldChanges
) -> None:
    if key not in new:
        _collect(old[key], schema, path, found.removed, parents=True)
    elif key not in old:
        _collect(new[key], schema, path, found.added, parents=True)
    else:
        _compare(old[key], new[key], schema, path, found)


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
