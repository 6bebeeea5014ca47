"""OpenAPI schemas from structs: for the built-in kinds, and structural ones for CRDs.

Each struct becomes an object whose properties are its fields, with the description, limits and list
keys of its field annotations. Everything is inlined (structural schemas have no references); equal
structs share one dict in memory, which nobody may change.

How a CRD stays small. A pod template written out in full, as generators do it, takes 600 KB per job
kind. Client-side ``kubectl apply`` cannot store that (262,144 bytes of annotation). Our schema has
every field of a template, so that a misspelt one is refused and every level can be explained, but

* each field has one short sentence where upstream has paragraphs;
* the template of one role only is described where a kind has a field for each role;
* rarely used fields (the old in-tree volume types) are free-form objects;
* fields that a template cannot have (ephemeral containers) are omitted.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec

from gangline.api.meta.field_doc import FreeForm

Json: TypeAlias = dict[str, Any]

PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"

_SCALARS: Mapping[Any, Json] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    Any: {PRESERVE_UNKNOWN: True},
    FreeForm: {"type": "object", PRESERVE_UNKNOWN: True},
}
_INT64_FIELDS = frozenset(
    {
        "active_deadline_seconds", "termination_grace_period_seconds", "run_as_user",
        "run_as_group", "fs_group", "supplemental_groups", "toleration_seconds", "size_bytes",
        "observed_generation", "generation", "deletion_grace_period_seconds",
        "expiration_seconds", "seconds", "grace_period_seconds",
    }
)  # fmt: skip
"""Integers with 64 bits in Kubernetes; the others have 32."""

_ATOMIC = frozenset(
    {
        "LabelSelector", "NodeSelector", "NodeSelectorTerm", "LocalObjectReference",
        "ObjectReference", "SecretReference", "TypedLocalObjectReference", "ConfigMapKeySelector",
        "SecretKeySelector", "FileKeySelector", "ObjectFieldSelector", "ResourceFieldSelector",
        "OwnerReference", "RoleRef", "Subject",
    }
)  # fmt: skip
"""Structs that have one owner as a unit under server-side apply."""

_NEVER_IN_TEMPLATES = frozenset({"ephemeral_containers"})


def openapi_schema(type_: type[msgspec.Struct]) -> Json:
    """Return the schema of a built-in kind, with the keys for strategic merge patches."""
    return _BUILT_IN.struct(type_)


def structural_schema(type_: type[msgspec.Struct]) -> Json:
    """Return the structural schema of a custom kind, as a CRD contains it."""
    schema = _STRUCTURAL.struct(type_)
    return schema | {"properties": schema["properties"] | {"metadata": {"type": "object"}}}


class _SchemaWriter:
    """Writes the schemas of one family, each struct once."""

    def __init__(self, *, structural: bool) -> None:
        self._structural = structural

    @cache  # noqa: B019 - one writer for each family
    def struct(self, type_: type[msgspec.Struct]) -> Json:
        properties: Json = {}
        required: list[str] = []
        for field in msgspec.structs.fields(type_):
            if self._structural and field.name in _NEVER_IN_TEMPLATES:
                continue
            properties[field.encode_name] = self._field(field)
            if _unwrapped(field.type)[2].get("required"):
                required.append(field.encode_name)
        schema: Json = {"type": "object"}
        if properties:
            # Kubernetes stores no empty map: each apply of the definition would find a difference.
            schema["properties"] = properties
        if type_.__doc__:
            schema["description"] = type_.__doc__.strip().splitlines()[0]
        if required:
            schema["required"] = required
        if type_.__name__ in _ATOMIC:
            schema["x-kubernetes-map-type"] = "atomic"
        return schema

    def _field(self, field: msgspec.structs.FieldInfo) -> Json:
        _, meta, extra = _unwrapped(field.type)
        schema = dict(self._value(extra.get("shape") or field.type, field.name in _INT64_FIELDS))
        if self._structural and extra.get("brief"):
            schema = without_descriptions(schema)
        if meta is not None:
            schema |= meta.extra_json_schema or {}
            if meta.description:
                schema["description"] = meta.description
        if keys := extra.get("keys"):
            self._keyed(schema, keys, retain=field.name == "volumes")
        return schema

    def _value(self, annotation: Any, wide: bool) -> Json:
        inner, _, extra = _unwrapped(annotation)
        form = extra.get("format")
        if form == "int-or-string" or (form == "quantity" and self._structural):
            schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], INT_OR_STRING: True}
            return schema | ({"pattern": extra["pattern"]} if "pattern" in extra else {})
        if form == "quantity":
            return {"oneOf": [{"type": "string"}, {"type": "number"}]}
        if inner is int:
            return {"type": "integer", "format": "int64" if wide else "int32"}
        if inner in _SCALARS:
            return _SCALARS[inner]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return self.struct(inner)
        origin, arguments = get_origin(inner), get_args(inner)
        if origin is list:
            return {"type": "array", "items": self._value(arguments[0], wide)}
        if origin is dict:
            return {"type": "object", "additionalProperties": self._value(arguments[1], wide)}
        raise TypeError(f"no schema for {annotation!r}")

    def _keyed(self, schema: Json, keys: list[str], *, retain: bool) -> None:
        """Mark the fields that identify an element of a list."""
        schema["x-kubernetes-list-type"] = "map"
        schema["x-kubernetes-list-map-keys"] = keys
        schema["items"] = _with_required_keys(schema["items"], keys)
        if not self._structural:
            schema["x-kubernetes-patch-merge-key"] = keys[0]
            schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if retain else "merge"


_BUILT_IN = _SchemaWriter(structural=False)
_STRUCTURAL = _SchemaWriter(structural=True)


def _with_required_keys(items: Json, keys: list[str]) -> Json:
    """Make the list keys required: structural schemas insist on required keys or a default.

    A default of "" would do as well, but an API server of 1.20 does not accept it.
    """
    properties = items.get("properties", {})
    loose = [
        key
        for key in keys
        if key in properties
        and key not in items.get("required", ())
        and "default" not in properties[key]
    ]
    if not loose:
        return items
    return {**items, "required": [*items.get("required", ()), *loose]}


def without_descriptions(schema: Any) -> Any:
    """Return the schema without descriptions; a property named "description" stays."""
    match schema:
        case dict():
            return {
                key: without_descriptions(value)
                for key, value in schema.items()
                if key != "description" or not isinstance(value, str)
            }
        case list():
            return [without_descriptions(item) for item in schema]
    return schema


def _unwrapped(annotation: Any) -> tuple[Any, msgspec.Meta | None, Json]:
    """Return the type without None and annotations, the outermost annotation with a description,
    and the ``extra`` values of all annotations, of which the outermost win.
    """
    meta: msgspec.Meta | None = None
    extra: Json = {}
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation, *notes = get_args(annotation)
            for note in notes:
                if isinstance(note, msgspec.Meta):
                    extra = {**(note.extra or {}), **extra}
                    meta = meta or (note if note.description else None)
        elif origin in (Union, UnionType) and NoneType in get_args(annotation):
            rest = [arg for arg in get_args(annotation) if arg is not NoneType]
            annotation = Union[tuple(rest)] if len(rest) > 1 else rest[0]  # noqa: UP007
        else:
            return annotation, meta, extra
