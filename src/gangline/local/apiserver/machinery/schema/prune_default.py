"""Compilers of pruning (unknown fields, invalid nulls) and of defaulting.

A schema is compiled once into nested closures. A node below which nothing can be pruned or
defaulted compiles to None and is never visited.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import (
    Json,
    ParentPath,
    SchemaCompiler,
    Segment,
    additional_properties,
    copy_json,
    format_field_path,
    preserves_unknown,
)

Pruner: TypeAlias = Callable[[Any, ParentPath, Segment, list[str]], None]
"""Arguments: value, path of the parent, own segment, list of unknown paths."""


class PrunerCompiler(SchemaCompiler[Pruner]):
    """Compiles schemas to pruners. The result is None if nothing below a node can be pruned."""

    def _compile(self, schema: Json) -> Pruner | None:
        items = schema.get("items")
        if isinstance(items, dict):
            return _list_pruner(self.compile(items))
        extra = additional_properties(schema)
        if "properties" not in schema and extra is not None:
            return _map_pruner(self.compile(extra))
        if "properties" in schema:
            return self._object_pruner(schema, extra)
        if schema.get("type") == "object" and not preserves_unknown(schema):
            return self._object_pruner({**schema, "properties": {}}, extra)
        return None

    def _object_pruner(self, schema: Json, extra: Json | None) -> Pruner:
        properties: Json = schema["properties"]
        known = {name: self.compile(child_schema) for name, child_schema in properties.items()}
        segments = {name: f".{name}" for name in properties}
        not_null = frozenset(
            n for n, child_schema in properties.items() if not child_schema.get("nullable")
        )
        keep_unknown = preserves_unknown(schema)
        of_extra = self.compile(extra) if extra is not None else None

        def prune(value: Any, parent: ParentPath, segment: Segment, unknown: list[str]) -> None:
            if not isinstance(value, dict):
                return
            path = (parent, segment)
            dropped: list[str] = []
            for name, child in value.items():
                if name in known:
                    if child is None:
                        if name in not_null:
                            dropped.append(name)
                    elif (inner := known[name]) is not None:
                        inner(child, path, segments[name], unknown)
                elif extra is not None:
                    if of_extra is not None:
                        of_extra(child, path, f"[{name}]", unknown)
                elif not keep_unknown:
                    if len(unknown) < limits.MAX_CAUSES:
                        unknown.append(format_field_path(path, f".{name}"))
                    dropped.append(name)
            for name in dropped:
                del value[name]

        return prune


def _list_pruner(inner: Pruner | None) -> Pruner | None:
    if inner is None:
        return None

    def prune(value: Any, parent: ParentPath, segment: Segment, unknown: list[str]) -> None:
        if isinstance(value, list):
            path = (parent, segment)
            for index, item in enumerate(value):
                inner(item, path, index, unknown)

    return prune


def _map_pruner(inner: Pruner | None) -> Pruner | None:
    if inner is None:
        return None

    def prune(value: Any, parent: ParentPath, segment: Segment, unknown: list[str]) -> None:
        if isinstance(value, dict):
            path = (parent, segment)
            for name, item in value.items():
                inner(item, path, f"[{name}]", unknown)

    return prune


Defaulter: TypeAlias = Callable[[Any], None]


class DefaulterCompiler(SchemaCompiler[Defaulter]):
    """Compiles schemas to defaulters. The result is None if no default is at or below a node."""

    def _compile(self, schema: Json) -> Defaulter | None:
        items = schema.get("items")
        if isinstance(items, dict):
            return _list_defaulter(self.compile(items))
        extra = additional_properties(schema)
        if "properties" not in schema and extra is not None:
            return _map_defaulter(self.compile(extra))
        return self._object_defaulter(schema.get("properties", {}))

    def _object_defaulter(self, properties: Json) -> Defaulter | None:
        absent = {
            name: child_schema["default"]
            for name, child_schema in properties.items()
            if "default" in child_schema
        }
        nullable = frozenset(name for name in absent if properties[name].get("nullable"))
        compiled = ((name, self.compile(child_schema)) for name, child_schema in properties.items())
        inner = [
            (name, child_schema) for name, child_schema in compiled if child_schema is not None
        ]
        if not absent and not inner:
            return None

        def apply(value: Any) -> None:
            if not isinstance(value, dict):
                return
            for name, default in absent.items():
                # API convention: null in a field that is not nullable counts as absent.
                if name not in value or (value[name] is None and name not in nullable):
                    value[name] = copy_json(default)
            for name, child_schema in inner:
                if name in value:
                    child_schema(value[name])

        return apply


def _list_defaulter(inner: Defaulter | None) -> Defaulter | None:
    if inner is None:
        return None

    def apply(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                inner(item)

    return apply


def _map_defaulter(inner: Defaulter | None) -> Defaulter | None:
    if inner is None:
        return None

    def apply(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                inner(item)

    return apply
