"""Nodes of structural schemas: standard fields, paths to fields, and the base of the compilers.

While an object is walked, a path is a chain ``(parent, segment)``. Nearly all fields are valid, so
the text of a path is built only for an error. A compiler visits each node of a schema once, even if
the tree refers to it several times.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from gangline.api.meta.objects import ObjectMeta
from gangline.api.schema.openapi import openapi_schema
from gangline.local import limits

Json: TypeAlias = dict[str, Any]
Segment: TypeAlias = str | int
ParentPath: TypeAlias = "tuple[ParentPath, Segment] | None"

MAP_KEYS = "x-kubernetes-list-map-keys"
LIST_TYPE = "x-kubernetes-list-type"
MAP_TYPE = "x-kubernetes-map-type"
INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
QUANTITY: Json = {"oneOf": [{"type": "string"}, {"type": "number"}]}
"""The schema of a quantity in built-in kinds."""

_EMPTY: Json = {}
_STRING: Json = {"type": "string"}
_META = openapi_schema(ObjectMeta)
_LISTS: Mapping[str, Json] = {
    "ownerReferences": {
        LIST_TYPE: "map",
        MAP_KEYS: ["uid"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "uid",
        "items": {**_META["properties"]["ownerReferences"]["items"], MAP_TYPE: "atomic"},
    },
    "finalizers": {LIST_TYPE: "set", "x-kubernetes-patch-strategy": "merge"},
}
_ENTRY: Json = dict.fromkeys(
    ("manager", "operation", "apiVersion", "time", "fieldsType", "subresource"), _STRING
)
OBJECT_META: Json = {
    "type": "object",
    "description": "Standard object's metadata: identity, labels, life cycle.",
    "properties": {
        **{
            name: {k: v for k, v in part.items() if k != "nullable"} | _LISTS.get(name, {})
            for name, part in _META["properties"].items()
        },
        "selfLink": {**_STRING, "description": "No longer set."},
        "managedFields": {
            "type": "array",
            "description": "Which manager owns which fields.",
            LIST_TYPE: "atomic",
            "items": {
                "type": "object",
                "properties": {**_ENTRY, "fieldsV1": {"type": "object", PRESERVE_UNKNOWN: True}},
            },
        },
    },
}
"""The metadata of every object. CRDs describe it only as ``type: object``."""


def with_object_fields(schema: Json) -> Json:
    """Return the schema with the ``apiVersion``, ``kind`` and ``metadata`` of a complete object."""
    own = schema.get("properties", {})
    metadata = own.get("metadata", {})
    parts = {
        "apiVersion": own.get("apiVersion")
        or {**_STRING, "description": "APIVersion defines group and version of the API."},
        "kind": own.get("kind") or {**_STRING, "description": "Kind of the object."},
        "metadata": {**OBJECT_META, "properties": dict(OBJECT_META["properties"])},
    }
    if "name" in metadata.get("properties", {}):
        # API rule: a CRD may restrict only the names of its objects, no other metadata.
        name = {**_STRING, **metadata["properties"]["name"]}
        parts["metadata"]["properties"]["name"] = name
    return {**schema, "type": "object", "properties": {**own, **parts}}


def expand_embedded(schema: Json) -> Json:
    """Return the schema of an embedded object with its standard fields, others unchanged."""
    return with_object_fields(schema) if schema.get(EMBEDDED) else schema


def preserves_unknown(schema: Json) -> bool:
    """Return True if fields that the schema does not name are preserved."""
    if schema.get(PRESERVE_UNKNOWN) or schema.get(INT_OR_STRING):
        return True
    extra = schema.get("additionalProperties")
    return extra is True or extra == {}


def additional_properties(schema: Mapping[str, Any]) -> Json | None:
    """Return the value schema of a map with free keys, or None."""
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, dict) and extra else None


def member_schema(schema: Json) -> Json | None:
    """Return the schema of the items of a list, or of the values of a map without fields of its
    own; None for other nodes.
    """
    items = schema.get("items")
    if isinstance(items, dict):
        return items
    return None if "properties" in schema else additional_properties(schema)


def field_schema(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the schema of a field, or an empty one if the schema does not describe it."""
    field: Mapping[str, Any] | None = schema.get("properties", _EMPTY).get(name)
    return field if field is not None else additional_properties(schema) or _EMPTY


def copy_json(value: Any) -> Any:
    """Return a deep copy of JSON, faster than ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {name: copy_json(child) for name, child in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def format_field_path(parent: ParentPath, segment: Segment = "") -> str:
    """Return a path as text, such as ``spec.containers[0].image``."""
    segments = [segment]
    while parent is not None:
        parent, segment = parent
        segments.append(segment)
    texts = [f"[{part}]" if isinstance(part, int) else _cut(part) for part in reversed(segments)]
    return "".join(texts).removeprefix(".")


def _cut(segment: str) -> str:
    most = limits.MAX_PATH_SEGMENT_CHARS
    return segment if len(segment) <= most else f"{segment[:most]}…"


T = TypeVar("T")


class SchemaCompiler(ABC, Generic[T]):
    """Base of compilers from schema nodes to closures. None stands for a node without any rule."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Json, T | None]] = {}

    def compile(self, schema: Json) -> T | None:
        cached = self._compiled.get(id(schema))
        if cached is None:
            # The entry retains the schema: an id is unique only while its object lives.
            cached = self._compiled[id(schema)] = (schema, self._compile(expand_embedded(schema)))
        return cached[1]

    @abstractmethod
    def _compile(self, schema: Json) -> T | None:
        """Compile one node. Its children are compiled through ``compile``."""
