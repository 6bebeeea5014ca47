"""OpenAPI documents of the server, derived from the schemas of its kinds.

Version 2 is one document for all kinds. Older kubectl reads it for ``explain``, validation and
patches, in JSON or in the protobuf encoding of google/gnostic, where each key is a numbered field
and keys with the prefix ``x-`` are vendor extensions, written as YAML (JSON is YAML). Version 3 has
one document for each group and version, for newer kubectl and its plugins. Schemas are written out
in full; only ObjectMeta is a shared definition. Paths contain what clients use: the kind of a path,
and that writes accept dry runs and field validation.

Version 2 has neither nullable values nor alternatives, and kubectl refuses fields that a schema
does not name. A schema that preserves unknown fields therefore names no fields in version 2.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from gangline.local.apiserver.machinery.schema.builtin_schemas import REQUIRED_IN_DOCUMENTS
from gangline.local.apiserver.machinery.schema.nodes import (
    EMBEDDED,
    INT_OR_STRING,
    OBJECT_META,
    PRESERVE_UNKNOWN,
    Json,
    with_object_fields,
)

__all__ = ["OpenAPIEntry", "openapi_v2", "openapi_v3", "openapi_v3_index"]

Convert: TypeAlias = Callable[[Json], Json]

_NOT_IN_V2 = frozenset({"oneOf", "anyOf", "allOf", "not", "nullable", "x-kubernetes-validations"})
_BOUNDS = frozenset(
    {
        "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength",
        "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxProperties",
        "minProperties",
    }
)  # fmt: skip


def to_v2(schema: Json) -> Json:
    if schema.get(INT_OR_STRING):
        return {**_described(schema), "type": "string", "format": "int-or-string"}
    if schema.get(PRESERVE_UNKNOWN):
        kept = {key: schema[key] for key in (PRESERVE_UNKNOWN, EMBEDDED) if key in schema}
        of_type = {"type": "object"} if schema.get("type") == "object" else {}
        return {**_described(schema), **kept, **of_type}
    own = {key: value for key, value in schema.items() if key not in _NOT_IN_V2}
    if own.get("format") == "quantity":
        del own["format"]
    if schema.get("nullable"):
        # Version 2 cannot express null, which bounds or an enum would exclude.
        own = {key: value for key, value in own.items() if key not in _BOUNDS | {"enum"}}
    return _with_parts(own, to_v2)


def to_v3(schema: Json) -> Json:
    """Return a schema in version 3, which differs only for int-or-string."""
    if schema.get(INT_OR_STRING):
        choices = [{"type": "integer"}, {"type": "string"}]
        return {**_described(schema), "format": "int-or-string", "oneOf": choices}
    return _with_parts(dict(schema), to_v3)


def _described(schema: Json) -> Json:
    return {key: schema[key] for key in ("description", "default") if key in schema}


def _with_parts(schema: Json, convert: Convert) -> Json:
    """Convert the children of a schema in place."""
    if REQUIRED_IN_DOCUMENTS in schema:
        schema["required"] = schema.pop(REQUIRED_IN_DOCUMENTS)
    if isinstance(properties := schema.get("properties"), dict):
        schema["properties"] = {name: convert(child) for name, child in properties.items()}
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            schema[part] = convert(schema[part])
    if schema.get("type") == "array" and "items" not in schema:
        schema["items"] = {"type": "object"}
    return schema


OBJECT_META_NAME = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"

_PATCH_TYPES = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
]
_WRITES = ("post", "put", "patch", "delete")
_BUILT_IN = {"": "core", "apps": "apps"}


@dataclass(frozen=True, slots=True)
class OpenAPIEntry:
    """One served kind in one version."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    schema: Mapping[str, Any]
    custom: bool = False
    """True for kinds of a CustomResourceDefinition, which accept no strategic merge patches."""

    @property
    def patch_types(self) -> list[str]:
        return [
            patch_type
            for patch_type in _PATCH_TYPES
            if not (self.custom and "strategic" in patch_type)
        ]

    @property
    def prefix(self) -> str:
        """The path of the group and version without leading slash: ``apis/apps/v1``."""
        return f"apis/{self.group}/{self.version}" if self.group else f"api/{self.version}"

    @property
    def definition_name(self) -> str:
        if self.group in _BUILT_IN or self.group.endswith(".k8s.io"):
            group = _BUILT_IN.get(self.group) or self.group.partition(".")[0]
            return f"io.k8s.api.{group}.{self.version}.{self.kind}"
        reversed_group = ".".join(reversed(self.group.split(".")))
        return f"{reversed_group}.{self.version}.{self.kind}"

    @property
    def collection_path(self) -> str:
        """The path of the objects of one namespace, or of all objects of a cluster-scoped kind."""
        scope = "/namespaces/{namespace}" if self.namespaced else ""
        return f"/{self.prefix}{scope}/{self.plural}"

    @property
    def group_version_kind(self) -> Json:
        return {"group": self.group, "kind": self.kind, "version": self.version}


OperationFunction: TypeAlias = Callable[[OpenAPIEntry, str], Json]


def openapi_v2(entries: Iterable[OpenAPIEntry], *, title: str, version: str) -> Json:
    definitions: Json = {OBJECT_META_NAME: to_v2(OBJECT_META)}
    paths: Json = {}
    for entry in entries:
        definitions[entry.definition_name] = _named_schema(entry, to_v2, "#/definitions/")
        paths.update(_paths(entry, _operation_v2))
    return {
        "swagger": "2.0",
        "info": {"title": title, "version": version},
        "paths": dict(sorted(paths.items())),
        "definitions": dict(sorted(definitions.items())),
    }


def openapi_v3_index(entries: Sequence[OpenAPIEntry]) -> Json:
    """Return the addresses of the version 3 documents. The hash changes with the content."""
    prefixes = sorted({entry.prefix for entry in entries})
    return {
        "paths": {prefix: {"serverRelativeURL": _address(entries, prefix)} for prefix in prefixes}
    }


def openapi_v3(entries: Iterable[OpenAPIEntry], group: str, version: str) -> Json | None:
    """Return the document of one group and version, or None if it has no kinds."""
    schemas: Json = {OBJECT_META_NAME: to_v3(OBJECT_META)}
    paths: Json = {}
    for entry in entries:
        if (entry.group, entry.version) == (group, version):
            schemas[entry.definition_name] = _named_schema(entry, to_v3, "#/components/schemas/")
            paths.update(_paths(entry, _operation_v3))
    if not paths:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Gangline", "version": version},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _named_schema(entry: OpenAPIEntry, convert: Convert, prefix: str) -> Json:
    complete = with_object_fields(dict(entry.schema))
    schema: Json = convert(complete)
    if "properties" in schema:
        reference = {"$ref": prefix + OBJECT_META_NAME}
        description = complete["properties"]["metadata"].get("description", "")
        # In version 3 a $ref must not have siblings, so a description needs an allOf wrapper.
        wrapped = {"allOf": [reference]} if prefix.startswith("#/components") else reference
        schema["properties"]["metadata"] = {**wrapped, "description": description}
    return {**schema, GROUP_VERSION_KIND: [entry.group_version_kind]}


def _paths(entry: OpenAPIEntry, operation: OperationFunction) -> Json:
    collection = {verb: operation(entry, verb) for verb in ("get", "post")}
    item = {verb: operation(entry, verb) for verb in ("get", "put", "patch", "delete")}
    in_path = ["namespace"] if entry.namespaced else []
    paths = {
        entry.collection_path: {**collection, "parameters": _path_parameters(in_path, operation)},
        entry.collection_path + "/{name}": {
            **item,
            "parameters": _path_parameters([*in_path, "name"], operation),
        },
    }
    if entry.namespaced:
        everywhere = f"/{entry.prefix}/{entry.plural}"
        paths[everywhere] = {"get": operation(entry, "get")}
    return paths


def _path_parameters(names: Iterable[str], operation: OperationFunction) -> list[Json]:
    return [_parameter(name, "path", operation is _operation_v3) for name in names]


def _parameter(name: str, place: str, nested: bool) -> Json:
    kind = {"schema": {"type": "string"}} if nested else {"type": "string"}
    return {"name": name, "in": place, "required": place == "path", **kind}


def _query_parameters(verb: str, nested: bool) -> list[Json]:
    if verb not in _WRITES:
        return []
    names = ["dryRun"] if verb == "delete" else ["dryRun", "fieldManager", "fieldValidation"]
    if verb == "patch":
        names.append("force")
    return [_parameter(name, "query", nested) for name in names]


def _operation(entry: OpenAPIEntry, verb: str, *, nested: bool) -> Json:
    return {
        "operationId": f"{verb}{entry.definition_name}",
        "parameters": _query_parameters(verb, nested=nested),
        "x-kubernetes-action": verb,
        GROUP_VERSION_KIND: entry.group_version_kind,
    }


def _operation_v2(entry: OpenAPIEntry, verb: str) -> Json:
    schema = {"$ref": f"#/definitions/{entry.definition_name}"}
    return {
        **_operation(entry, verb, nested=False),
        "consumes": entry.patch_types if verb == "patch" else ["*/*"],
        "produces": ["application/json"],
        "responses": {"200": {"description": "OK", "schema": schema}},
    }


def _operation_v3(entry: OpenAPIEntry, verb: str) -> Json:
    schema = {"$ref": f"#/components/schemas/{entry.definition_name}"}
    body = {"content": {"application/json": {"schema": schema}}}
    operation = _operation(entry, verb, nested=True)
    operation["responses"] = {"200": {"description": "OK", **body}}
    if verb in ("post", "put"):
        operation["requestBody"] = body
    elif verb == "patch":
        operation["requestBody"] = {"content": {media: {} for media in entry.patch_types}}
    return operation


def _address(entries: Sequence[OpenAPIEntry], prefix: str) -> str:
    served = [[entry.kind, entry.schema] for entry in entries if entry.prefix == prefix]
    digest = hashlib.sha256(json.dumps(served, sort_keys=True, default=str).encode())
    return f"/openapi/v3/{prefix}?hash={digest.hexdigest().upper()[:32]}"


class _Field(NamedTuple):
    """A field of a message of google/gnostic, from ``gnostic_messages.toml``."""

    numbers: Sequence[int]
    type: str
    container: str
    """``[]``, ``{}`` or empty."""


@cache
def _messages() -> Mapping[str, Mapping[str, _Field]]:
    text = resources.files(__package__).joinpath("gnostic_messages.toml").read_text()
    return {
        message: {key: _parse_field(field) for key, field in fields.items()}
        for message, fields in tomllib.loads(text).items()
    }


def _parse_field(text: str) -> _Field:
    numbers, _, type_ = text.partition(" ")
    plain = type_.removesuffix("[]").removesuffix("{}")
    return _Field([int(number) for number in numbers.split(",")], plain, type_[len(plain) :])


def openapi_v2_protobuf(document: Json) -> bytes:
    return _message("Document", document)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


def _delimited(numbers: Sequence[int], payload: bytes) -> bytes:
    """Encode a text or a message, as a field within fields."""
    for number in numbers[::-1]:
        payload = _varint(number << 3 | 2) + _varint(len(payload)) + payload
    return payload


def _message(type_: str, obj: Json) -> bytes:
    parts: list[bytes] = []
    for key, (numbers, inner, container) in _messages()[type_].items():
        value: Any
        if key == "x-":
            value = {name: obj[name] for name in obj if name.startswith(key)}
        elif key in obj:
            value = obj[key]
        else:
            continue
        if inner == "flag":
            parts += [_varint(numbers[0] << 3) + _varint(1)] if value else []
        elif container == "{}":
            *outer, number = numbers
            entries = (
                _delimited([number], _delimited([1], name.encode()) + _value([2], inner, item))
                for name, item in value.items()
            )
            parts.append(_delimited(outer, b"".join(entries)))
        elif container:
            parts += [_value(numbers, inner, item) for item in value]
        elif inner == "any" or value not in ("", True):
            parts.append(_value(numbers, inner, value))
    return b"".join(parts)


def _value(numbers: Sequence[int], type_: str, value: Any) -> bytes:
    match type_:
        case "text":
            return _delimited(numbers, str(value).encode())
        case "any":
            return _delimited([*numbers, 2], json.dumps(value).encode())
        case "Parameter":
            value = {value["in"]: value}
        case "ResponseValue":
            value = {"response": value}
    return _delimited(numbers, _message(type_, value))
