"""How the modules here read a structural schema: kinds of nodes, fixed parts, paths to fields.

A path is kept as a chain ``(parent, segment)`` while an object is walked, because nearly every
field is fine and only the path of a wrong one is ever put together.
"""

from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Segment: TypeAlias = str | int
Path: TypeAlias = "tuple[Path, Segment] | None"

MAP_KEYS = "x-kubernetes-list-map-keys"
LIST_TYPE = "x-kubernetes-list-type"
MAP_TYPE = "x-kubernetes-map-type"
INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"

_STRING: Json = {"type": "string"}
_STRINGS: Json = {"type": "object", "additionalProperties": _STRING}
_TIME: Json = {"type": "string", "format": "date-time"}

OBJECT_META: Json = {
    "type": "object",
    "properties": {
        "name": _STRING,
        "generateName": _STRING,
        "namespace": _STRING,
        "selfLink": _STRING,
        "uid": _STRING,
        "resourceVersion": _STRING,
        "generation": {"type": "integer", "format": "int64"},
        "creationTimestamp": {**_TIME, "nullable": True},
        "deletionTimestamp": _TIME,
        "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
        "labels": _STRINGS,
        "annotations": _STRINGS,
        "ownerReferences": {
            "type": "array",
            LIST_TYPE: "map",
            MAP_KEYS: ["uid"],
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "uid",
            "items": {
                "type": "object",
                MAP_TYPE: "atomic",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    "apiVersion": _STRING,
                    "kind": _STRING,
                    "name": _STRING,
                    "uid": _STRING,
                    "controller": {"type": "boolean"},
                    "blockOwnerDeletion": {"type": "boolean"},
                },
            },
        },
        "finalizers": {
            "type": "array",
            LIST_TYPE: "set",
            "x-kubernetes-patch-strategy": "merge",
            "items": _STRING,
        },
        "managedFields": {
            "type": "array",
            LIST_TYPE: "atomic",
            "items": {
                "type": "object",
                "properties": {
                    "manager": _STRING,
                    "operation": _STRING,
                    "apiVersion": _STRING,
                    "time": _TIME,
                    "fieldsType": _STRING,
                    "fieldsV1": {"type": "object", PRESERVE: True},
                    "subresource": _STRING,
                },
            },
        },
    },
}
"""The metadata of every object; CRDs say no more of it than ``type: object``."""


def with_object_parts(schema: Json) -> Json:
    """Return the schema with ``apiVersion``, ``kind`` and ``metadata`` of a whole object."""
    own = schema.get("properties", {})
    metadata = own.get("metadata", {})
    parts = {
        "apiVersion": own.get("apiVersion", _STRING),
        "kind": own.get("kind", _STRING),
        "metadata": {**OBJECT_META, "properties": dict(OBJECT_META["properties"])},
    }
    if "name" in metadata.get("properties", {}):
        # A CRD may restrict the names of its objects, and nothing else of their metadata.
        name = {**_STRING, **metadata["properties"]["name"]}
        parts["metadata"]["properties"]["name"] = name
    return {**schema, "type": "object", "properties": {**own, **parts}}


def expanded(schema: Json) -> Json:
    """Return the schema of an embedded object with its standard fields, others unchanged."""
    return with_object_parts(schema) if schema.get(EMBEDDED) else schema


def preserves_unknown(schema: Json) -> bool:
    """Whether fields that the schema does not name are kept."""
    if schema.get(PRESERVE) or schema.get(INT_OR_STRING):
        return True
    extra = schema.get("additionalProperties")
    return extra is True or extra == {}


def extra_values(schema: Json) -> Json | None:
    """Return the schema of the values of a map with free keys, if it is one and says so."""
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, dict) and extra else None


def copied(value: Any) -> Any:
    """Return a deep copy of JSON: ``copy.deepcopy`` asks of every value what JSON never is."""
    if isinstance(value, dict):
        return {name: copied(child) for name, child in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def render(parent: Path, segment: Segment = "") -> str:
    """Return the path as people write it, such as ``spec.containers[0].image``."""
    segments = [segment]
    while parent is not None:
        parent, segment = parent
        segments.append(segment)
    texts = [f"[{part}]" if isinstance(part, int) else part for part in reversed(segments)]
    return "".join(texts).removeprefix(".")
