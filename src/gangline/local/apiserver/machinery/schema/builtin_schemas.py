"""OpenAPI schemas of built-in kinds that this project has no structs for.

They are made from the table of protobuf fields when a kind is first used, and have the types, list
keys and required fields of Kubernetes, without descriptions. The server does not enforce
``required`` for these kinds, as Kubernetes does not: validation has rules of its own for them.
"""

from collections.abc import Mapping
from functools import cache

from gangline.api.schema.field_table import MessageField, message_fields, message_is_atomic
from gangline.local.apiserver.machinery.schema.nodes import (
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    OBJECT_META,
    PRESERVE_UNKNOWN,
    QUANTITY,
    Json,
)

__all__ = ["REQUIRED_IN_DOCUMENTS", "message_schema"]

REQUIRED_IN_DOCUMENTS = "x-gangline-required"
_META = "meta.k8s.io/v1#ObjectMeta"
_TYPES: Mapping[str, Json] = {
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "n": {"type": "integer", "format": "int32"},
    "i": {"type": "integer", "format": "int64"},
    "y": {"type": "string", "format": "byte"},
    "Duration": {"type": "string"},
    "ExtraValue": {"type": "array", "items": {"type": "string"}},
    "FieldsV1": {"type": "object", PRESERVE_UNKNOWN: True},
    "IntOrString": {"anyOf": [{"type": "integer"}, {"type": "string"}], INT_OR_STRING: True},
    "MicroTime": {"type": "string", "format": "date-time"},
    "Quantity": QUANTITY,
    "RawExtension": {"type": "object", PRESERVE_UNKNOWN: True},
    "Time": {"type": "string", "format": "date-time"},
}


@cache
def message_schema(message: str) -> Json:
    """Return the schema of a message, given as ``VERSION#NAME``."""
    if message == _META:
        return OBJECT_META
    properties: Json = {}
    required: list[str] = []
    for field in message_fields(message).values():
        if not field.name:
            properties |= message_schema(field.type)["properties"]
            continue
        properties[field.name] = _field_schema(field)
        if field.required:
            required.append(field.name)
    schema: Json = {"type": "object", "properties": properties}
    if required:
        schema[REQUIRED_IN_DOCUMENTS] = required
    if message_is_atomic(message):
        schema[MAP_TYPE] = "atomic"
    return schema


def _field_schema(field: MessageField) -> Json:
    schema = _TYPES[field.type] if field.type in _TYPES else message_schema(field.type)
    flags = field.flags
    if field.container == "[]":
        schema = {"type": "array", "items": schema}
        for list_type in ("atomic", "set", "map"):
            if list_type in flags:
                schema[LIST_TYPE] = list_type
        if keys := flags.get("map"):
            schema[MAP_KEYS] = keys.split(",")
    else:
        if field.container == "{}":
            schema = {"type": "object", "additionalProperties": schema}
        if "atomic" in flags:
            schema = {**schema, MAP_TYPE: "atomic"}
    if strategy := flags.get("patch"):
        schema = {**schema, "x-kubernetes-patch-strategy": strategy}
    if key := flags.get("key"):
        schema = {**schema, "x-kubernetes-patch-merge-key": key}
    return schema
