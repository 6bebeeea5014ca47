"""Compiles the nodes of a schema, each once even if the tree refers to it several times."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from gangline.local.apiserver.machinery.schemas import Json, expand_embedded

T = TypeVar("T")


class SchemaCompiler(ABC, Generic[T]):
    """Base of compilers from schema nodes to closures. None stands for a node without any rule."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Json, T | None]] = {}

    def compile(self, schema: Json) -> T | None:
        cached = self._compiled.get(id(schema))
        if cached is None:
            # The entry retains the schema: an id is unique only while its object lives.
            cached = self._compiled[id(schema)] = (schema, self._compile(expand_embedded(schema)))
        return cached[1]

    @abstractmethod
    def _compile(self, schema: Json) -> T | None:
        """Compile one node. Its children are compiled through ``compile``."""
