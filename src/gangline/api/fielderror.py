"""A mistake in one field of an object: where, what was given, what is wrong, what is right."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gangline.api.names import Complaint

_PLAIN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LONGEST_SHOWN = 80

Segments = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One mistake."""

    path: str
    """Such as ``spec.runPolicy.suspend`` or ``spec.containers[0].image``."""
    value: Any
    """What was given; None where something is missing."""
    problem: str
    """What is wrong, to be read after the value: ``is not a DNS label``."""
    remedy: str = ""
    """What would be right, as an imperative."""

    def __str__(self) -> str:
        """All of it in one line."""
        value = "" if self.value is None else f" {shown(self.value)}"
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.path}:{value} {self.problem}{remedy}"


def shown(value: Any) -> str:
    """A value as far as a message has room for it."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def child(path: str, name: str) -> str:
    """Write the path of a field, or of an entry of a map, below another."""
    return f"{path}.{name}" if path and _PLAIN.fullmatch(name) else f"{path}[{name}]"


def path_of(segments: Iterable[str | int]) -> str:
    """Write a path: names after dots, positions and unusual names in brackets."""
    text = ""
    for segment in segments:
        if isinstance(segment, str) and _PLAIN.fullmatch(segment):
            text += f".{segment}" if text else segment
        else:
            text += f"[{segment}]"
    return text


def complaint_at(path: str, value: str, complaint: Complaint | None) -> list[FieldError]:
    """The complaint about a name as an error of the field that holds it, if there is one."""
    return [FieldError(path, value, *complaint)] if complaint else []
