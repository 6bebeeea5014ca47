"""Fields that every log line of one piece of work carries, such as the job that is looked at.

They belong to the task that sets them and to the tasks that it starts: lines of jobs that are
looked at side by side are not mixed up.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_NONE: Mapping[str, object] = MappingProxyType({})
_fields: ContextVar[Mapping[str, object]] = ContextVar("log_fields", default=_NONE)


def current_fields() -> Mapping[str, object]:
    """Return the fields of the work that is being done."""
    return _fields.get()


@contextmanager
def log_fields(fields: Mapping[str, object]) -> Iterator[None]:
    """Add fields to the log lines of what happens inside, over those from outside."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)
