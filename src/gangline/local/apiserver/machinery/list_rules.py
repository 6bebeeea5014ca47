"""Uniqueness in lists: keys of list-maps, members of sets, ``uniqueItems``."""

import json
from typing import Any

from gangline.api.meta import StatusCause
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.schemas import (
    LIST_TYPE,
    MAP_KEYS,
    Json,
    ParentPath,
    Segment,
    format_field_path,
)
from gangline.local.apiserver.machinery.value_rules import ValueRule


def list_rule(schema: Json) -> list[ValueRule]:
    """Return the uniqueness rule of a list schema as a list of at most one rule."""
    if "x-kubernetes-patch-strategy" in schema:
        # Keys of built-in lists only guide merges. Code checks uniqueness where it is
        # required: a container may have two variables with one name.
        return []
    keys: list[str] = schema.get(MAP_KEYS, [])
    if schema.get(LIST_TYPE) == "map" and keys:
        fields: Json = schema.get("items", {}).get("properties", {})
        defaults = {key: fields.get(key, {}).get("default") for key in keys}
        return [_unique(lambda item: _key_of(item, defaults))]
    if schema.get(LIST_TYPE) == "set" or schema.get("uniqueItems"):
        return [_unique(lambda item: item)]
    return []


def _key_of(item: Any, defaults: Json) -> Json | None:
    if not isinstance(item, dict):
        return None
    key = {name: item.get(name, default) for name, default in defaults.items()}
    return {name: value for name, value in key.items() if value is not None} or None


def _unique(identity: Any) -> ValueRule:
    def rule(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        if len(value) < 2:
            return
        seen: set[str] = set()
        for index, item in enumerate(value):
            key = identity(item)
            if key is None:
                continue  # a missing key is reported as a required field
            text = key if isinstance(key, str) else json.dumps(key, sort_keys=True)
            if text in seen:
                causes.append(
                    field_errors.duplicate(format_field_path((parent, segment), index), key)
                )
            seen.add(text)

    return rule
