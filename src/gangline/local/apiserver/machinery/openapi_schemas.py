"""Structural schemas in the dialects of OpenAPI 2 and 3.

Version 2 has neither nullable values nor alternatives, and kubectl refuses fields that a schema
does not name. A schema that preserves unknown fields therefore names no fields in version 2.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from gangline.local.apiserver.machinery.schemas import (
    EMBEDDED,
    INT_OR_STRING,
    PRESERVE_UNKNOWN,
    Json,
)

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
    if isinstance(properties := schema.get("properties"), dict):
        schema["properties"] = {name: convert(of) for name, of in properties.items()}
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            schema[part] = convert(schema[part])
    if schema.get("type") == "array" and "items" not in schema:
        schema["items"] = _anything()
    return schema


def _anything() -> dict[str, Any]:
    return {"type": "object"}
