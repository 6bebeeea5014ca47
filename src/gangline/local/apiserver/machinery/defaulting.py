"""Sets the defaults of a schema, compiled once into closures over the fields that have any."""

from collections.abc import Callable
from typing import Any, TypeAlias

from gangline.local.apiserver.machinery.compiling import SchemaCompiler
from gangline.local.apiserver.machinery.schemas import Json, copy_json, additional_properties

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
        absent = {name: of["default"] for name, of in properties.items() if "default" in of}
        nullable = frozenset(name for name in absent if properties[name].get("nullable"))
        compiled = ((name, self.compile(of)) for name, of in properties.items())
        inner = [(name, of) for name, of in compiled if of is not None]
        if not absent and not inner:
            return None

        def apply(value: Any) -> None:
            if not isinstance(value, dict):
                return
            for name, default in absent.items():
                # API convention: null in a field that is not nullable counts as absent.
                if name not in value or (value[name] is None and name not in nullable):
                    value[name] = copy_json(default)
            for name, of in inner:
                if name in value:
                    of(value[name])

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
