"""An error in one field of an object: path, value, problem and remedy."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gangline.api.names import NameProblem

_PLAIN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_MAX_VALUE_LENGTH = 80

Segments = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error or warning about one field."""

    path: str
    """Such as ``spec.runPolicy.suspend`` or ``spec.containers[0].image``."""
    value: Any
    """The given value; None if the field is missing."""
    problem: str
    """The predicate of a sentence whose subject is the value: ``is not a DNS label``."""
    remedy: str = ""
    """What would be right, as an imperative; empty if there is no advice."""
    reason: str = ""
    """Reason of a Kubernetes status cause, such as ``FieldValueInvalid``; empty if unspecified."""

    def __str__(self) -> str:
        value = "" if self.value is None else f" {format_value(self.value)}"
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.path}:{value} {self.problem}{remedy}"


def format_value(value: Any) -> str:
    """Return the repr of a value, truncated to 80 characters."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


def child_path(path: str, name: str) -> str:
    """Return the path of a field, or of an entry of a map, below ``path``."""
    return f"{path}.{name}" if path and _PLAIN.fullmatch(name) else f"{path}[{name}]"


def format_path(segments: Iterable[str | int]) -> str:
    """Join segments to a path: names after dots, positions and unusual names in brackets."""
    text = ""
    for segment in segments:
        if isinstance(segment, str) and _PLAIN.fullmatch(segment):
            text += f".{segment}" if text else segment
        else:
            text += f"[{segment}]"
    return text


def is_below(path: str, parts: Iterable[str]) -> bool:
    """Return whether a path is one of the parts of an object, or in one of them."""
    return any(path == part or path.startswith((f"{part}.", f"{part}[")) for part in parts)


def name_errors(path: str, value: str, complaint: NameProblem | None) -> list[FieldError]:
    """Convert the problem with a name, if there is one, to an error of its field."""
    return [FieldError(path, value, *complaint)] if complaint else []
