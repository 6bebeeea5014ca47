"""Fields that are added to every log line of a task, such as the key of a reconcile.

They belong to the task that sets them and to the tasks that it starts, so concurrent reconciles do
not mix them up.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_NONE: Mapping[str, object] = MappingProxyType({})
_fields: ContextVar[Mapping[str, object]] = ContextVar("log_fields", default=_NONE)


def current_log_fields() -> Mapping[str, object]:
    """Return the log fields of the current task."""
    return _fields.get()


@contextmanager
def log_fields(fields: Mapping[str, object]) -> Iterator[None]:
    """Add fields to the log lines inside the context; they override outer ones."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)
