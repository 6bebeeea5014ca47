"""Nodes of structural schemas: standard fields, paths to fields, and the base of the compilers.

While an object is walked, a path is a chain ``(parent, segment)``. Nearly all fields are valid, so
the text of a path is built only for an error. A compiler visits each node of a schema once, even if
the tree refers to it several times.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeAlias, TypeVar

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

_STRING: Json = {"type": "string"}
_STRINGS: Json = {"type": "object", "additionalProperties": _STRING}
_NUMBER: Json = {"type": "integer", "format": "int64"}
_TIME: Json = {"type": "string", "format": "date-time"}


def _with_description(schema: Json, description: str) -> Json:
    return {**schema, "description": description}


_OWNER: Json = {
    "type": "object",
    "description": "An owner of this object. The object is deleted after its owners.",
    MAP_TYPE: "atomic",
    "required": ["apiVersion", "kind", "name", "uid"],
    "properties": {
        "apiVersion": _with_description(_STRING, "API version of the owner."),
        "kind": _with_description(_STRING, "Kind of the owner."),
        "name": _with_description(_STRING, "Name of the owner."),
        "uid": _with_description(_STRING, "UID of the owner."),
        "controller": _with_description(
            {"type": "boolean"}, "Whether the owner manages this object."
        ),
        "blockOwnerDeletion": _with_description(
            {"type": "boolean"}, "Whether a foreground deletion of the owner waits for this one."
        ),
    },
}
_ENTRY: Json = {
    "type": "object",
    "description": "The fields of one manager.",
    "properties": {
        "manager": _with_description(_STRING, "Name of the writer."),
        "operation": _with_description(_STRING, "How it wrote: Apply or Update."),
        "apiVersion": _with_description(_STRING, "API version of the field names."),
        "time": _with_description(_TIME, "When the fields of the entry last changed."),
        "fieldsType": _with_description(_STRING, "Format of the fields: FieldsV1."),
        "fieldsV1": _with_description(
            {"type": "object", PRESERVE_UNKNOWN: True}, "The fields, as a tree."
        ),
        "subresource": _with_description(_STRING, "Written subresource, if any."),
    },
}

OBJECT_META: Json = {
    "type": "object",
    "description": "Metadata of every stored object: identity, labels, life cycle.",
    "properties": {
        "name": _with_description(
            _STRING, "Name, unique among the objects of the kind in the namespace."
        ),
        "generateName": _with_description(_STRING, "Prefix of a name that the server completes."),
        "namespace": _with_description(_STRING, "Namespace of the object."),
        "selfLink": _with_description(_STRING, "No longer set."),
        "uid": _with_description(_STRING, "Unique identity; names can be reused."),
        "resourceVersion": _with_description(
            _STRING, "Changes with every write; compare for equality only."
        ),
        "generation": _with_description(_NUMBER, "Counts the changes of the desired state."),
        "creationTimestamp": _with_description(_TIME, "Time of creation."),
        "deletionTimestamp": _with_description(
            _TIME, "Time by which it is removed; set by a deletion."
        ),
        "deletionGracePeriodSeconds": _with_description(
            _NUMBER, "Grace period of its deletion in seconds."
        ),
        "labels": _with_description(_STRINGS, "Names and values for selecting objects."),
        "annotations": _with_description(_STRINGS, "Names and values for tools and users."),
        "ownerReferences": {
            "type": "array",
            "description": "Owners of this object.",
            LIST_TYPE: "map",
            MAP_KEYS: ["uid"],
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "uid",
            "items": _OWNER,
        },
        "finalizers": {
            "type": "array",
            "description": "Identifiers that must be removed before the object is.",
            LIST_TYPE: "set",
            "x-kubernetes-patch-strategy": "merge",
            "items": _STRING,
        },
        "managedFields": {
            "type": "array",
            "description": "Which manager owns which fields.",
            LIST_TYPE: "atomic",
            "items": _ENTRY,
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
        or _with_description(_STRING, "Group and version of the API."),
        "kind": own.get("kind") or _with_description(_STRING, "Kind of the object."),
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
