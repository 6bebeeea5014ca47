"""The OpenAPI v2 document in the protobuf encoding that kubectl requests.

The messages are those of ``openapi.v2`` in google/gnostic: each key of the JSON document is a
numbered field. Only keys that ``openapi`` produces are encoded. Keys with the prefix ``x-`` become
vendor extensions, written as YAML (JSON is YAML).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from gangline.local.apiserver.machinery.schema.nodes import Json

Encoder: TypeAlias = Callable[[Any], bytes]


def openapi_v2_protobuf(document: Json) -> bytes:
    return b"".join(
        (
            _text(1, document["swagger"]),
            _field(2, _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])),
            _field(8, _named(2, document["paths"], _path_item)),
            _field(9, _named(1, document["definitions"], _schema)),
        )
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    """Encode a length-delimited field: a text or a message."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _texts(number: int, texts: Iterable[str]) -> bytes:
    return b"".join(_text(number, text) for text in texts)


def _flag(number: int, value: bool) -> bytes:
    return _varint(number << 3) + _varint(1) if value else b""


def _any(value: Any) -> bytes:
    return _text(2, json.dumps(value))


def _named(number: int, members: Mapping[str, Any], encode: Encoder) -> bytes:
    """Encode a map: each member is a message of name and value."""
    return b"".join(
        _field(number, _text(1, name) + _field(2, encode(value))) for name, value in members.items()
    )


def _extensions(number: int, of: Json) -> bytes:
    return _named(number, {key: of[key] for key in of if key.startswith("x-")}, _any)


def _path_item(item: Json) -> bytes:
    verbs = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
    operations = (_field(verbs[verb], _operation(item[verb])) for verb in verbs if verb in item)
    return b"".join(operations) + _parameters(9, item.get("parameters", ()))


def _operation(operation: Json) -> bytes:
    responses = operation["responses"]
    return b"".join(
        (
            _text(5, operation["operationId"]),
            _texts(6, operation["produces"]),
            _texts(7, operation["consumes"]),
            _parameters(8, operation["parameters"]),
            _field(9, _named(1, responses, lambda response: _field(1, _response(response)))),
            _extensions(13, operation),
        )
    )


def _response(response: Json) -> bytes:
    return _text(1, response["description"]) + _field(2, _field(1, _schema(response["schema"])))


def _parameters(number: int, parameters: Iterable[Json]) -> bytes:
    return b"".join(_field(number, _field(1, _field(2, _parameter(each)))) for each in parameters)


def _parameter(parameter: Json) -> bytes:
    query = parameter["in"] == "query"
    body = b"".join(
        (
            _flag(1, parameter["required"]),
            _text(2, parameter["in"]),
            _text(4, parameter["name"]),
            _text(6 if query else 5, parameter["type"]),
        )
    )
    return _field(3 if query else 4, body)


def _schema(schema: Json) -> bytes:
    parts = [
        _text(number, schema[key])
        for key, number in (("$ref", 1), ("format", 2), ("description", 4))
        if schema.get(key)
    ]
    if "default" in schema:
        parts.append(_field(5, _any(schema["default"])))
    parts.append(_texts(19, schema.get("required", ())))
    parts += [_field(20, _any(value)) for value in schema.get("enum", ())]
    if isinstance(extra := schema.get("additionalProperties"), dict):
        parts.append(_field(21, _field(1, _schema(extra))))
    if "type" in schema:
        parts.append(_field(22, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_field(23, _field(1, _schema(schema["items"]))))
    if "properties" in schema:
        parts.append(_field(25, _named(1, schema["properties"], _schema)))
    parts.append(_extensions(31, schema))
    return b"".join(parts)
