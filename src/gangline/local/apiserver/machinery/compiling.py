"""Compilation of a schema's nodes, each once however often it occurs in the tree."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from gangline.local.apiserver.machinery.schemas import Json, expanded

T = TypeVar("T")


class SchemaCompiler(ABC, Generic[T]):
    """Turns schemas into something that works on objects; None where there is nothing to do."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Json, T | None]] = {}

    def compile(self, schema: Json) -> T | None:
        """Return what a schema compiles to."""
        cached = self._known.get(id(schema))
        if cached is None:
            # The schema is kept beside its product: an id is unique only while its object lives.
            cached = self._known[id(schema)] = (schema, self._compile(expanded(schema)))
        return cached[1]

    @abstractmethod
    def _compile(self, schema: Json) -> T | None:
        """Compile one node; its parts go through ``compile``."""
