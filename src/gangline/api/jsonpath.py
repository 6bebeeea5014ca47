r"""The JSONPath of printer columns: fields, indexes, slices, wildcards and simple filters.

Examples::

    .spec.replicas   .metadata.annotations.example\.com/note   .status['phase']
    .items[0]   .items[-1:]   .items[*].name   .conditions[?(@.type=="Ready")].status
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Step: TypeAlias = Callable[[Any], Iterator[Any]]


class JSONPathError(ValueError):
    """The path is outside the subset of JSONPath that printer columns may use."""


# Possessive quantifiers: others try all ways to divide a run of spaces between two of them.
_TOKEN = re.compile(
    r"""\.?(?P<any>\*)(?=[.\[]|\Z)
    | \.(?P<name>(?:\\.|[^.\[\]\\*])++)
    | \[\s*+(?P<quoted>'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+")\s*+\]
    | \[\s*+(?P<star>\*)\s*+\]
    | \[\s*+(?P<slice>-?\d*+\s*+:\s*+-?\d*+(?:\s*+:\s*+\d*+)?+)\s*+\]
    | \[\s*+(?P<index>-?\d++)\s*+\]
    | \[\?\(\s*+(?P<filter>(?:"(?:\\.|[^"\\])*+"|'(?:\\.|[^'\\])*+'|[^()"'])*+)\)\]
    """,
    re.VERBOSE,
)
_TEST = re.compile(r"==|!=|<=|>=|[=!<>]")
MAX_CHARS = 4096
"""Maximum length of a path: each of its steps visits the values that the earlier ones found."""
MAX_INDEX_DIGITS = 18
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, init=False)
class JSONPath:
    """A compiled path.

    Raises:
        JSONPathError: the text is not a path of the supported subset.
    """

    _steps: tuple[Step, ...]

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_steps", tuple(_parse(text)))

    def find(self, value: Any) -> list[Any]:
        """Return all values that the path selects, in document order. The list may be empty."""
        values = [value]
        for step in self._steps:
            values = [result for parent in values for result in step(parent)]
        return values


def _parse(text: str) -> Iterator[Step]:
    if len(text) > MAX_CHARS:
        raise JSONPathError(
            f"a path of {len(text)} characters is too long; use at most {MAX_CHARS}"
        )
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix("$")
    if path == ".":
        return
    if path and path[0] not in ".[":
        path = f".{path}"
    position = 0
    while position < len(path):
        match = _TOKEN.match(path, position)
        if match is None:
            raise JSONPathError(f"cannot read {path[position:][:80]!r} in the path {text!r}")
        yield _step(match)
        position = match.end()


def _step(match: re.Match[str]) -> Step:
    kind = match.lastgroup
    token = match[kind] if kind else ""
    match kind:
        case "name":
            return _field(re.sub(r"\\(.)", r"\1", token))
        case "quoted":
            return _field(re.sub(r"\\(.)", r"\1", token[1:-1]))
        case "index":
            place = _number(token)
            return _slice(slice(place, place + 1 or None))
        case "slice":
            bounds = [_number(part) if part.strip() else None for part in token.split(":")]
            if bounds[2:] == [0]:
                raise JSONPathError(f"the step of the slice [{token}] must be at least 1")
            return _slice(slice(*bounds))
        case "filter":
            return _filter(token)
    return _children


def _number(text: str) -> int:
    digits = text.strip()
    if len(digits) > MAX_INDEX_DIGITS or digits == "-":
        raise JSONPathError(f"{digits[:40]!r} is not the index of a list")
    return int(digits)


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _slice(which: slice) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[which]

    return step


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _filter(text: str) -> Step:
    condition = text.strip()
    if not condition.startswith("@"):
        raise JSONPathError(f"cannot read the filter {text!r}: it must start with @")
    match = _TEST.search(condition)
    path = JSONPath(condition[1 : match.start() if match else None].strip() or ".")
    test = _TESTS.get(match[0]) if match else None
    expected = _literal(condition[match.end() :].strip()) if match else None
    if match and test is None:
        raise JSONPathError(f"cannot read the filter {text!r}: {match[0]!r} compares nothing")

    def holds(item: Any) -> bool:
        values = path.find(item)
        if test is None or not values:
            return bool(values)
        try:
            return test(values[0], expected)
        except TypeError:
            return False

    def step(value: Any) -> Iterator[Any]:
        yield from (item for item in _children(value) if holds(item))

    return step


def _literal(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise JSONPathError(f"cannot read the value {text!r} in a filter") from None
