"""The compiled structural schema of a kind: pruning, defaulting and validation of its objects.

The server runs them in this order on every write: prune unknown fields, set defaults, validate.
``apiVersion``, ``kind`` and ``metadata`` are always preserved, whatever the schema contains.
"""

import contextlib
from typing import Any

from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import Json, with_object_fields
from gangline.local.apiserver.machinery.schema.prune_default import (
    DefaulterCompiler,
    PrunerCompiler,
)
from gangline.local.apiserver.machinery.schema.validate import (
    CauseList,
    TooManyCausesError,
    ValidatorCompiler,
)

__all__ = ["StructuralSchema"]


class StructuralSchema:
    """The schema of one kind in one version. Compilation takes milliseconds, so reuse it."""

    def __init__(self, schema: Json) -> None:
        self.schema = with_object_fields(schema)
        self._prune = PrunerCompiler().compile(self.schema)
        self._default = DefaulterCompiler().compile(self.schema)
        self._validate = ValidatorCompiler().compile(self.schema)

    def prune(self, obj: Json) -> list[str]:
        """Remove unknown fields and invalid nulls in place. Returns the paths of unknown fields."""
        unknown: list[str] = []
        if self._prune is not None:
            self._prune(obj, None, "", unknown)
        return unknown

    def apply_defaults(self, obj: Json) -> None:
        if self._default is not None:
            self._default(obj)

    def validate(self, obj: Any) -> list[StatusCause]:
        """Return the errors of an object; one more than are reported if there are too many."""
        causes = CauseList(limits.MAX_CAUSES + 1)
        if self._validate is not None:
            with contextlib.suppress(TooManyCausesError):
                self._validate(obj, None, "", causes)
        return causes
