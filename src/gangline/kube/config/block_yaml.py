"""The part of YAML that programs write into kubeconfigs, read without a YAML library.

A YAML library takes a tenth of the time of a short command to import. kubectl, kind and Gangline
write block mappings and lists of mappings, whose values are plain texts. That is all that is read
here. Anything else, even a comment, is left to the library, which also has the messages.
"""

import re
from typing import Any

_LINE = re.compile(
    r"(?P<indent> *)(?P<item>- )?(?P<key>[A-Za-z][A-Za-z0-9-]*):"
    r"(?: (?P<value>[-_]?[A-Za-z][A-Za-z0-9+/=._:@-]*(?<!:)"
    r"|[0-9][A-Za-z0-9_-]*[g-np-su-wyG-NP-SU-WY][A-Za-z0-9_-]*|\{\}))?",
    re.ASCII,
)
"""One line. A value that begins with a letter is no number, and one without blanks has no comment.

Random tokens begin with any character of URLs. One that begins with a digit is a text if it has a
letter that no number and no time has (those have the letters a to f, o, t, x and z).
"""
_NO_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "null"))
"""Plain values in lower case that mean something else than their characters."""
_MAX_DEPTH = 16

_Line = tuple[int, bool, str, str | None]


class _NotRead(Exception):
    """The text has something that is left to the library."""


def read_block_yaml(text: bytes) -> dict[str, Any] | None:
    """Return the mapping that a text contains; None if a YAML library must read it."""
    try:
        lines = [_read_line(line) for line in text.decode("ascii").splitlines() if line]
        if not lines:
            return None
        mapping, end = _read_mapping(lines, 0, lines[0][0], _MAX_DEPTH)
    except (_NotRead, UnicodeDecodeError):
        return None
    return mapping if end == len(lines) else None


def _read_line(line: str) -> _Line:
    found = _LINE.fullmatch(line)
    if found is None:
        raise _NotRead
    indent, item, key, value = found.group("indent", "item", "key", "value")
    if value is not None and value.lower() in _NO_TEXT:
        raise _NotRead
    return len(indent), item is not None, key, value


def _read_mapping(
    lines: list[_Line], start: int, indent: int, depth: int
) -> tuple[dict[str, Any], int]:
    """Return the mapping whose first key is in a line, and the number of the line after it."""
    if not depth or lines[start][1]:
        raise _NotRead
    mapping: dict[str, Any] = {}
    at = start
    while at < len(lines) and lines[at][0] == indent and not lines[at][1]:
        _, _, key, value = lines[at]
        if key in mapping:
            raise _NotRead
        at += 1
        if value is not None:
            mapping[key] = {} if value == "{}" else value
        elif at < len(lines) and lines[at][1] and lines[at][0] >= indent:
            mapping[key], at = _read_list(lines, at, depth - 1)
        elif at < len(lines) and lines[at][0] > indent:
            mapping[key], at = _read_mapping(lines, at, lines[at][0], depth - 1)
        else:
            mapping[key] = None
    if at < len(lines) and lines[at][0] > indent:
        raise _NotRead
    return mapping, at


def _read_list(lines: list[_Line], start: int, depth: int) -> tuple[list[Any], int]:
    """Return the list whose first item begins in a line, and the number of the line after it."""
    indent, items, at = lines[start][0], [], start
    while at < len(lines) and lines[at][0] == indent and lines[at][1]:
        _, _, key, value = lines[at]
        # The first key of an item stands behind its dash: its column is that of the others.
        lines[at] = (indent + len("- "), False, key, value)
        item, at = _read_mapping(lines, at, indent + len("- "), depth - 1)
        items.append(item)
    return items, at
