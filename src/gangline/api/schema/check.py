"""Checks a manifest against the schema of its kind: types, allowed values, ranges, unknown fields.

It uses the structural schema of the CRD before anything is sent. Its messages say more than a
server's: which field was probably meant, where a misplaced field belongs, how to write a value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import isfinite
from typing import Any

import jsonschema_rs
import msgspec

from gangline.api.meta.json_objects import without_nulls
from gangline.api.meta.objects import ObjectMeta
from gangline.api.schema.field_error import FieldError, Segments, format_path, format_value
from gangline.api.schema.openapi import (
    INT_OR_STRING,
    PRESERVE_UNKNOWN,
    Json,
    openapi_schema,
    structural_schema,
)

_Violation = jsonschema_rs.ValidationError

_TYPES = {"integer": "a whole number", "string": "text", "boolean": "true or false",
          "number": "a number", "array": "a list", "object": "an object"}  # fmt: skip
_KINDS = {bool: "true or false", int: "a whole number", float: "a number with a fraction",
          str: "text", list: "a list", dict: "an object"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaCheckResult:
    errors: list[FieldError]
    valid: Json
    """The object without the parts that have the wrong type."""
    invalid_paths: frozenset[str]
    """Paths of the removed parts and of missing fields."""


def check_schema(manifest: Mapping[str, Any], type_: type[msgspec.Struct]) -> SchemaCheckResult:
    try:
        sound = without_nulls(msgspec.json.decode(msgspec.json.encode(manifest)))
    except RecursionError:
        return _not_json("contains itself, or is nested too deeply", "remove that part")
    except (OverflowError, TypeError) as error:
        return _not_json("cannot be written as JSON", f"use text for the names: {error}")
    schema, validator = _strict_schema(type_)
    errors = list(_non_finite_numbers(manifest, ()))
    wrong: list[Segments] = []
    try:
        complaints = list(validator.iter_errors(sound))
    except ValueError:  # the nesting limit of the validator
        return _not_json("is nested too deeply", "use fewer levels")
    for violation in complaints:
        segments = tuple(violation.instance_path)
        explain = _EXPLANATIONS.get(violation.kind.name, _explain_other)
        errors += explain(violation, segments, schema)
        if violation.kind.name in ("type", "anyOf"):
            wrong.append(segments)
    dropped = {_remove_part(sound, segments) for segments in wrong}
    dropped |= {error.path for error in errors if error.problem == _MISSING}
    return SchemaCheckResult(
        sorted(errors, key=lambda error: error.path), sound, frozenset(dropped)
    )


def _not_json(problem: str, remedy: str) -> SchemaCheckResult:
    return SchemaCheckResult([FieldError("the object", None, problem, remedy)], {}, frozenset({""}))


def unknown_field_errors(errors: list[FieldError]) -> list[FieldError]:
    return [error for error in errors if error.problem == _UNKNOWN]


_UNKNOWN = "is not a known field"
_MISSING = "is missing"


@cache
def _strict_schema(type_: type[msgspec.Struct]) -> tuple[Json, jsonschema_rs.Validator]:
    """Return the schema of a kind, and a validator for it that also refuses unknown fields."""
    schema = structural_schema(type_)
    metadata = {
        **openapi_schema(ObjectMeta),
        "properties": dict(openapi_schema(ObjectMeta)["properties"]),
    }
    metadata["properties"] |= {"managedFields": {}, "selfLink": {}}
    schema["properties"]["metadata"] = metadata
    return schema, jsonschema_rs.validator_for(_forbid_unknown(schema))


def _forbid_unknown(schema: Json) -> Json:
    closed = dict(schema)
    if schema.get(INT_OR_STRING):
        closed.pop("pattern", None)  # the rules for quantities say more
    if properties := schema.get("properties"):
        closed["properties"] = {name: _forbid_unknown(child) for name, child in properties.items()}
        if not schema.get(PRESERVE_UNKNOWN):
            closed["additionalProperties"] = False
    elif isinstance(extra := schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = _forbid_unknown(extra)
    if "items" in schema:
        closed["items"] = _forbid_unknown(schema["items"])
    if schema.get("format") == "int32":
        closed = {"minimum": -(2**31), "maximum": 2**31 - 1} | closed
    return closed


def _non_finite_numbers(value: Any, segments: Segments) -> Iterator[FieldError]:
    """Yield errors for ``.nan`` and ``.inf``, which YAML has and JSON has not."""
    if isinstance(value, float) and not isfinite(value):
        yield FieldError(format_path(segments), value, "is not a JSON number", "give a number")
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from _non_finite_numbers(child, (*segments, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _non_finite_numbers(item, (*segments, index))


def _remove_part(sound: Json, segments: Segments) -> str:
    """Remove the part at the path, or the list that contains it; return the removed path."""
    names = list(segments)
    while names and isinstance(names[-1], int):
        names.pop()
    parent: Any = sound
    for segment in names[:-1]:
        if not isinstance(parent, dict | list):
            break
        parent = parent.get(segment, {}) if isinstance(parent, dict) else parent[int(segment)]
    if isinstance(parent, dict) and names:
        parent.pop(str(names[-1]), None)
    return format_path(names)


def _explain_other(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    return [FieldError(format_path(segments), violation.instance, violation.message)]


def _explain_unknown(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    properties = _schema_at(schema, segments).get("properties", {})
    remedies = {
        name: _suggest_field(name, segments, properties, schema) for name in violation.kind.value
    }
    return [
        FieldError(format_path((*segments, name)), None, _UNKNOWN, remedy)
        for name, remedy in remedies.items()
    ]


def _suggest_field(name: str, segments: Segments, properties: Json, schema: Json) -> str:
    """Suggest the field that an unknown name probably stands for."""
    spelt = {field.lower(): field for field in properties}
    if close := get_close_matches(name.lower(), spelt, n=1, cutoff=0.75):
        return f"did you mean {spelt[close[0]]!r}?"
    for length in range(len(segments), -1, -1):
        above = segments[:length]
        if owner := _find_owner(name, _schema_at(schema, above)):
            return f"it belongs to {format_path((*above, *owner))}"
    return f"use one of {', '.join(sorted(properties))}" if len(properties) <= 12 else "remove it"


def _find_owner(name: str, schema: Json) -> Segments | None:
    """Return the shortest path down to an object with a field of this name, or None."""
    level: list[tuple[Segments, Json]] = [((), schema)]
    while level:
        below: list[tuple[Segments, Json]] = []
        for way, node in level:
            if way and name in node.get("properties", {}):
                return way
            below += [((*way, *step), child) for step, child in _children(node)]
        level = below
    return None


def _children(node: Json) -> Iterator[tuple[Segments, Json]]:
    for field, child in node.get("properties", {}).items():
        yield (field,), child
    if isinstance(extra := node.get("additionalProperties"), dict):
        yield ("<name>",), extra
    if "items" in node:
        yield ("",), node["items"]


def _schema_at(schema: Json, segments: Segments) -> Json:
    node = schema
    for segment in segments:
        if isinstance(segment, int):
            node = node.get("items", {})
        else:
            extra = node.get("additionalProperties")
            other = extra if isinstance(extra, dict) else {}
            node = node.get("properties", {}).get(segment, other)
    return node


def _explain_missing(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    path = (*segments, violation.kind.value)
    meaning = _schema_at(schema, path).get("description", "")
    return [FieldError(format_path(path), None, _MISSING, f"give it: {meaning}" if meaning else "")]


def _explain_type(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    wanted = _schema_at(schema, segments).get("type", "")
    given = violation.instance
    problem = f"is {_KINDS.get(type(given), 'null')}, not {_TYPES.get(wanted, wanted)}"
    return [FieldError(format_path(segments), given, problem, _suggest_value(given, wanted))]


def _suggest_value(given: Any, wanted: str) -> str:
    """Suggest how to write a value as the expected type."""
    if wanted == "string" and isinstance(given, bool | int | float):
        text = str(given).lower() if isinstance(given, bool) else str(given)
        return f'write it in quotes: "{text}"'
    if wanted in ("integer", "boolean") and isinstance(given, str):
        plain = given.strip().lower()
        right = plain.lstrip("-").isdigit() if wanted == "integer" else plain in ("true", "false")
        return f"write it without quotes: {plain}" if right else f"write {_TYPES[wanted]}"
    if wanted == "array" and not isinstance(given, dict):
        return f"write a list: [{given}]"
    return f"write {_TYPES.get(wanted, wanted)}"


def _explain_any_of(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    if not _schema_at(schema, segments).get(INT_OR_STRING):
        return _explain_other(violation, segments, schema)
    given = violation.instance
    problem = f"is {_KINDS.get(type(given), 'null')}, not a whole number or text"
    remedy = f'write it in quotes: "{given}"' if type(given) is float else ""
    return [FieldError(format_path(segments), given, problem, remedy)]


def _explain_enum(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    allowed = list(map(str, violation.kind.value))
    remedy = f"use one of {', '.join(map(format_value, allowed))}"
    spelt = {spelling.lower(): spelling for spelling in allowed}
    if close := get_close_matches(str(violation.instance).lower(), spelt, n=1, cutoff=0.7):
        remedy = f"did you mean {spelt[close[0]]!r}?"
    return [FieldError(format_path(segments), violation.instance, "is not allowed", remedy)]


def _explain_bound(violation: _Violation, segments: Segments, schema: Json) -> list[FieldError]:
    low = violation.kind.name == "minimum"
    limit = violation.kind.value
    problem = f"is {'below' if low else 'above'} {limit}"
    remedy = f"give at {'least' if low else 'most'} {limit}"
    return [FieldError(format_path(segments), violation.instance, problem, remedy)]


_EXPLANATIONS: Mapping[str, Callable[[_Violation, Segments, Json], list[FieldError]]] = {
    "additionalProperties": _explain_unknown,
    "required": _explain_missing,
    "type": _explain_type,
    "anyOf": _explain_any_of,
    "enum": _explain_enum,
    "minimum": _explain_bound,
    "maximum": _explain_bound,
}
