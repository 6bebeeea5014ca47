"""A kind's structural schema, compiled: pruning, defaulting and validation of its objects.

The server calls the three in this order on every write: unknown fields go (or are complained of),
defaults are filled in, then every mistake is collected. Objects keep ``apiVersion``, ``kind`` and
``metadata`` whatever the schema says of them.
"""

from typing import Any

from gangline.api.meta import StatusCause
from gangline.local.apiserver.machinery.defaulting import DefaulterCompiler
from gangline.local.apiserver.machinery.pruning import PrunerCompiler
from gangline.local.apiserver.machinery.schemas import Json, with_object_parts
from gangline.local.apiserver.machinery.validating import ValidatorCompiler

__all__ = ["StructuralSchema"]


class StructuralSchema:
    """The schema of one kind in one version; make it once, it costs milliseconds to compile."""

    def __init__(self, schema: Json) -> None:
        self.schema = with_object_parts(schema)
        self._prune = PrunerCompiler().compile(self.schema)
        self._default = DefaulterCompiler().compile(self.schema)
        self._validate = ValidatorCompiler().compile(self.schema)

    def prune(self, obj: Json) -> list[str]:
        """Remove, in place, unknown fields and nulls that are no values.

        Returns the paths of the unknown fields; nulls are not worth a word.
        """
        return self._walk(obj, remove=True)

    def unknown_fields(self, obj: Json) -> list[str]:
        """Return the paths of the fields that the schema does not know."""
        return self._walk(obj, remove=False)

    def apply_defaults(self, obj: Json) -> None:
        """Fill in, in place, the defaults of absent fields."""
        if self._default is not None:
            self._default(obj)

    def validate(self, obj: Any) -> list[StatusCause]:
        """Return every mistake in the object; none when it is as the schema wants it."""
        causes: list[StatusCause] = []
        if self._validate is not None:
            self._validate(obj, None, "", causes)
        return causes

    def _walk(self, obj: Json, remove: bool) -> list[str]:
        unknown: list[str] = []
        if self._prune is not None:
            self._prune(obj, None, "", unknown, remove)
        return unknown
