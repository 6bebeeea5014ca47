"""YAML documents as plain data, after a check of their expanded size.

A few lines of YAML can stand for more objects than memory can hold (aliases of aliases), for a list
that contains itself, or for nesting deeper than the parser's stack. The parser's events are
therefore walked once before any object is built: that takes time in proportion to the text, not to
its expansion. The same walk finds duplicate keys, of which YAML would silently take the last.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from gangline.api.yaml_values import YamlValueLoader

MAX_DEPTH = 100
"""Maximum nesting depth; a job has about 20 levels."""
MAX_VALUES = 200_000
"""Maximum number of values of one document; an alias counts as what it stands for."""
MERGE_KEY = "<<"


class InvalidYamlError(Exception):
    """The text is not YAML, or exceeds a limit; the message contains the position."""


def load_yaml_documents(text: str) -> list[Any]:
    """Parse all documents of a text, without the empty ones. Raises InvalidYamlError: it is not
    YAML, is nested too deeply, is too large when expanded, contains itself, has a duplicate key, or
    has a value that JSON cannot represent.
    """
    try:
        twice = check_yaml_size(text)
        if twice:
            raise InvalidYamlError("\n  ".join([*twice[:20], "remove one of the two"]))
        return [
            document
            for document in yaml.load_all(text, Loader=YamlValueLoader)
            if document is not None
        ]
    except yaml.YAMLError as error:
        raise InvalidYamlError(_error_position(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidYamlError(f"a value cannot be read: {error}") from error


def _error_position(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + " ".join(problem.split())


def _position(event: yaml.Event) -> str:
    mark = event.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"


@dataclass
class _OpenCollection:
    """A list or object whose end has not been reached."""

    anchor: str | None
    is_object: bool
    size: int = 1
    children: int = 0
    keys: set[str] = field(default_factory=set)


@dataclass
class _SizeCheck:
    """State of the walk through one text."""

    max_values: int = MAX_VALUES
    max_documents: int | None = None
    documents: int = 0
    path: list[_OpenCollection] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    duplicate_keys: list[str] = field(default_factory=list)

    def visit(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._start_document(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                ended = self.path.pop()
                self._add(ended.anchor, ended.size, event)
            case yaml.AliasEvent():
                self._add(None, self._size_of(event), event)
            case yaml.ScalarEvent():
                self._note_key(event)
                self._add(event.anchor, 1, event)

    def _start_document(self, event: yaml.DocumentStartEvent) -> None:
        self.documents += 1
        if self.max_documents is not None and self.documents > self.max_documents:
            expected = "one document" if self.max_documents == 1 else "fewer documents"
            raise InvalidYamlError(f"{_position(event)}: another document starts; send {expected}")
        self.sizes.clear()

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        if len(self.path) >= MAX_DEPTH:
            place = _position(event)
            raise InvalidYamlError(f"{place}: is nested more than {MAX_DEPTH} levels deep")
        self.path.append(_OpenCollection(event.anchor, isinstance(event, yaml.MappingStartEvent)))

    def _size_of(self, event: yaml.AliasEvent) -> int:
        if any(collection.anchor == event.anchor for collection in self.path):
            place = _position(event)
            raise InvalidYamlError(
                f"{place}: *{event.anchor} contains itself; remove that reference"
            )
        return self.sizes.get(event.anchor or "", 1)

    def _add(self, anchor: str | None, size: int, event: yaml.Event) -> None:
        if anchor is not None:
            self.sizes[anchor] = size
        if not self.path:
            return
        parent = self.path[-1]
        parent.size += size
        parent.children += 1
        if parent.size > self.max_values:
            raise InvalidYamlError(
                f"{_position(event)}: stands for more than {self.max_values} values, "
                "counting each alias (*name) as what it repeats; use fewer aliases"
            )

    def _note_key(self, event: yaml.ScalarEvent) -> None:
        parent = self.path[-1] if self.path else None
        if parent is None or not parent.is_object or parent.children % 2:
            return
        if event.value in parent.keys and event.value != MERGE_KEY:
            self.duplicate_keys.append(f"{_position(event)}: {event.value!r} is given twice")
        parent.keys.add(event.value)


def check_yaml_size(
    text: str | bytes, max_values: int = MAX_VALUES, max_documents: int | None = None
) -> list[str]:
    """Walk a text without building objects; return its duplicate keys with their positions.

    Raises:
        InvalidYamlError: it is nested too deeply, is too large when expanded, contains itself, or
            has too many documents (None: any number).
        yaml.YAMLError: it is not YAML.
    """
    seen = _SizeCheck(max_values, max_documents)
    for event in _events(text):
        seen.visit(event)
    return seen.duplicate_keys


def _events(text: str | bytes) -> Iterator[yaml.Event]:
    events: Iterator[yaml.Event] = yaml.parse(text, Loader=YamlValueLoader)
    return events
