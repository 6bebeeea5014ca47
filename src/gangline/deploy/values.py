"""Values of the chart: defaults, files and ``--set``, checked against the chart's schema."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

import jsonschema_rs
import yaml

Values = dict[str, Any]


class InvalidValues(Exception):
    """Values that the chart does not accept; ``errors`` has one sentence for each."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


def merge_values(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """Return ``base`` with ``changes``: maps are merged, null removes a key."""
    merged = deepcopy(dict(base))
    for key, value in changes.items():
        present = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(present, dict) and isinstance(value, Mapping):
            merged[key] = merge_values(present, value)
        else:
            merged[key] = deepcopy(value)
    return merged


def parse_assignments(texts: Iterable[str]) -> Values:
    """Read ``--set`` as Helm does: ``a.b=1``, ``a={x,y}``, several separated by commas.

    Raises:
        InvalidValues: a text is no assignment.
    """
    values: Values = {}
    for text in texts:
        for assignment in _split(text, ","):
            path, equals, value = assignment.partition("=")
            keys = [key.replace("\\.", ".") for key in re.split(r"(?<!\\)\.", path.strip())]
            if not equals or not all(keys) or "[" in path:
                raise InvalidValues([f"--set {assignment}: it must be KEY.KEY=VALUE"])
            target = values
            for key in keys[:-1]:
                target = target.setdefault(key, {})
                if not isinstance(target, dict):
                    raise InvalidValues([f"--set {assignment}: {key} has a value already"])
            target[keys[-1]] = _parse_value(value)
    return values


def _split(text: str, separator: str) -> list[str]:
    """Split at separators that are neither escaped nor in braces."""
    parts, depth, current = [], 0, ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            current += following if following == separator else character + following
            continue
        depth += (character == "{") - (character == "}")
        if character == separator and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]


def _parse_value(text: str) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return [_parse_value(item.strip()) for item in _split(text[1:-1], ",") if item.strip()]
    constants = {"true": True, "false": False, "null": None}
    if text in constants:
        return constants[text]
    return int(text) if re.fullmatch(r"-?(0|[1-9]\d*)", text) else text


def read_values(text: str, name: str) -> Values:
    """Read a file of values.

    Raises:
        InvalidValues: it is not a YAML map.
    """
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidValues([f"{name} is not YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(values, dict):
        raise InvalidValues([f"{name} must be a map of values, not {type(values).__name__}"])
    return values


def find_errors(values: Values, schema: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each value that the schema refuses."""
    validator = jsonschema_rs.validator_for(dict(schema))
    problems = []
    for error in validator.iter_errors(values):
        path = ".".join(map(str, error.instance_path))
        unknown = _unknown_keys(values, schema, list(error.instance_path))
        if "dditional properties" in error.message and unknown:
            problems += [f"{path}.{key}".removeprefix(".") for key in unknown]
        else:
            problems.append(f"{path or 'values'}: {error.message}")
    return sorted(problems)


def _unknown_keys(values: Values, schema: Mapping[str, Any], path: list[str | int]) -> list[str]:
    """Return the keys at a path that the schema does not have, with what was probably meant."""
    value: Any = values
    for key in path:
        value = value[key]
        schema = schema.get("properties", {}).get(key, {})
    properties = schema.get("properties", {})
    if not isinstance(value, Mapping):
        return []
    problems = []
    for key in value:
        if key not in properties:
            near = get_close_matches(str(key), properties, n=1)
            meant = (
                f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(properties))}"
            )
            problems.append(f"{key}: there is no such value; {meant}")
    return problems
