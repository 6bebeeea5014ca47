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

from gangline.api.fielderror import FieldError, Segments, path_of, shown
from gangline.api.meta import ObjectMeta
from gangline.api.nulls import without_nulls
from gangline.api.schema import INT_OR_STRING, PRESERVE_UNKNOWN, Json, for_type, structural

_TYPES = {"integer": "a whole number", "string": "text", "boolean": "true or false",
          "number": "a number", "array": "a list", "object": "an object"}  # fmt: skip
_KINDS = {bool: "true or false", int: "a whole number", float: "a number with a fraction",
          str: "text", list: "a list", dict: "an object"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """The result of a check against the schema."""

    errors: list[FieldError]
    sound: Json
    """The object without the parts that have the wrong type."""
    dropped: frozenset[str]
    """Paths of the removed parts and of missing fields."""


def check_shape(manifest: Mapping[str, Any], type_: type[msgspec.Struct]) -> Shape:
    """Check an object, as plain data, against the schema of its kind."""
    try:
        sound = without_nulls(msgspec.json.decode(msgspec.json.encode(manifest)))
    except RecursionError:
        return _unwritable("contains itself, or is nested too deeply", "remove that part")
    except (OverflowError, TypeError) as error:
        return _unwritable("cannot be written as JSON", f"use text for the names: {error}")
    schema, validator = _closed_schema(type_)
    errors = list(_without_number(manifest, ()))
    wrong: list[Segments] = []
    try:
        complaints = list(validator.iter_errors(sound))
    except ValueError:  # the nesting limit of the validator
        return _unwritable("is nested too deeply", "use fewer levels")
    for found in complaints:
        segments = tuple(found.instance_path)
        errors += _explain(found, segments, schema)
        if found.kind.name in ("type", "anyOf"):
            wrong.append(segments)
    dropped = {_drop(sound, segments) for segments in wrong}
    dropped |= {error.path for error in errors if error.problem == _MISSING}
    return Shape(sorted(errors, key=lambda error: error.path), sound, frozenset(dropped))


def _unwritable(problem: str, remedy: str) -> Shape:
    return Shape([FieldError("the object", None, problem, remedy)], {}, frozenset({""}))


def unknown_fields(errors: list[FieldError]) -> list[FieldError]:
    return [error for error in errors if error.problem == _UNKNOWN]


_UNKNOWN = "is not a known field"
_MISSING = "is missing"


@cache
def _closed_schema(type_: type[msgspec.Struct]) -> tuple[Json, jsonschema_rs.Validator]:
    """Return the schema of a kind, and a validator for it that also refuses unknown fields."""
    schema = structural(type_)
    metadata = {**for_type(ObjectMeta), "properties": dict(for_type(ObjectMeta)["properties"])}
    metadata["properties"] |= {"managedFields": {}, "selfLink": {}}
    schema["properties"]["metadata"] = metadata
    return schema, jsonschema_rs.validator_for(_closed(schema))


def _closed(schema: Json) -> Json:
    closed = dict(schema)
    if properties := schema.get("properties"):
        closed["properties"] = {name: _closed(child) for name, child in properties.items()}
        if not schema.get(PRESERVE_UNKNOWN):
            closed["additionalProperties"] = False
    elif isinstance(extra := schema.get("additionalProperties"), dict):
        closed["additionalProperties"] = _closed(extra)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    if schema.get("format") == "int32":
        closed = {"minimum": -(2**31), "maximum": 2**31 - 1} | closed
    return closed


def _without_number(value: Any, segments: Segments) -> Iterator[FieldError]:
    """Yield errors for ``.nan`` and ``.inf``, which YAML has and JSON has not."""
    if isinstance(value, float) and not isfinite(value):
        yield FieldError(path_of(segments), value, "is not a JSON number", "give a number")
    elif isinstance(value, Mapping):
        for name, child in value.items():
            yield from _without_number(child, (*segments, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _without_number(item, (*segments, index))


def _drop(sound: Json, segments: Segments) -> str:
    """Remove the part at the path, or the list that contains it. Returns the path of what was
    removed.
    """
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
    return path_of(names)


def _explain(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    explain = _EXPLANATIONS.get(found.kind.name)
    if explain is None:
        return [FieldError(path_of(segments), found.instance, found.message)]
    return explain(found, segments, schema)


def _unknown(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    known = _schema_at(schema, segments).get("properties", {})
    return [
        FieldError(
            path_of((*segments, name)), None, _UNKNOWN, _meant(name, segments, known, schema)
        )
        for name in found.kind.value
    ]


def _meant(name: str, segments: Segments, known: Json, schema: Json) -> str:
    """Suggest the field that an unknown name probably stands for."""
    spelt = {field.lower(): field for field in known}
    if close := get_close_matches(name.lower(), spelt, n=1, cutoff=0.75):
        return f"did you mean {spelt[close[0]]!r}?"
    for length in range(len(segments), -1, -1):
        above = segments[:length]
        if home := _home_of(name, _schema_at(schema, above)):
            return f"it belongs to {path_of((*above, *home))}"
    return f"use one of {', '.join(sorted(known))}" if len(known) <= 12 else "remove it"


def _home_of(name: str, schema: Json) -> Segments | None:
    """Return the shortest path down to an object that has a field of this name; None if there is
    none.
    """
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


def _missing(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    path = (*segments, found.kind.value)
    meaning = _schema_at(schema, path).get("description", "")
    return [FieldError(path_of(path), None, _MISSING, f"give it: {meaning}" if meaning else "")]


def _type(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    wanted = _schema_at(schema, segments).get("type", "")
    given = found.instance
    problem = f"is {_KINDS.get(type(given), 'null')}, not {_TYPES.get(wanted, wanted)}"
    return [FieldError(path_of(segments), given, problem, _rewritten(given, wanted))]


def _rewritten(given: Any, wanted: str) -> str:
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


def _either(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    if not _schema_at(schema, segments).get(INT_OR_STRING):
        return [FieldError(path_of(segments), found.instance, found.message)]
    problem = f"is {_KINDS.get(type(found.instance), 'null')}, not a whole number or text"
    remedy = f'write it in quotes: "{found.instance}"' if type(found.instance) is float else ""
    return [FieldError(path_of(segments), found.instance, problem, remedy)]


def _enum(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    allowed = [str(each) for each in found.kind.value]
    remedy = f"use one of {', '.join(map(shown, allowed))}"
    spelt = {each.lower(): each for each in allowed}
    if close := get_close_matches(str(found.instance).lower(), spelt, n=1, cutoff=0.7):
        remedy = f"did you mean {spelt[close[0]]!r}?"
    return [FieldError(path_of(segments), found.instance, "is not allowed", remedy)]


def _bound(
    found: jsonschema_rs.ValidationError, segments: Segments, schema: Json
) -> list[FieldError]:
    low = found.kind.name == "minimum"
    limit = found.kind.value
    problem = f"is {'below' if low else 'above'} {limit}"
    remedy = f"give at {'least' if low else 'most'} {limit}"
    return [FieldError(path_of(segments), found.instance, problem, remedy)]


_EXPLANATIONS: Mapping[
    str, Callable[[jsonschema_rs.ValidationError, Segments, Json], list[FieldError]]
] = {
    "additionalProperties": _unknown,
    "required": _missing,
    "type": _type,
    "anyOf": _either,
    "enum": _enum,
    "minimum": _bound,
    "maximum": _bound,
}
