"""Rules of the kinds of training jobs: one module per kind, with its errors and its warnings.

Each module has the two functions of ``JobKindRules``. ``rules_of`` imports only the module of the
kind that is asked for, because a command validates one kind.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol

from gangline.api.jobs.kind import JobKind
from gangline.api.schema.field_error import FieldError


class JobKindRules(Protocol):
    """The rules of a kind, which its module implements as functions."""

    OPERATOR_VARIABLES: frozenset[str]
    """Environment variables that the operator sets, also over a value of the user."""

    def validate(self, job: Any, old: Any = None) -> Iterable[FieldError]:
        """Yield the errors of a job that no schema can express; ``old``: the job before it."""

    def list_warnings(self, job: Any) -> Iterable[FieldError]:
        """Yield valid settings that are probably not intended."""


def rules_of(kind: JobKind) -> JobKindRules:
    module: Any = import_module(f"{__name__}.{kind.module}")
    rules: JobKindRules = module
    return rules
