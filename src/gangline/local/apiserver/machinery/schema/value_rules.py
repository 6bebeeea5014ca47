"""Rules of a schema for one value: bounds, lengths, patterns, enums, and formats by name.

Kubernetes compiles a ``pattern`` with Go's ``regexp``. RE2, from which that package is derived, has
the same syntax and never backtracks: ``^(a+)+$`` takes as long as ``^a+$``.
"""

import base64
import binascii
import ipaddress
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID

import re2

from gangline.api.meta import field_causes
from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.machinery.schema.nodes import (
    Json,
    ParentPath,
    Segment,
    format_field_path,
)

__all__ = ["Pattern", "PatternError", "compile_pattern"]


class PatternError(ValueError):
    """The pattern is not valid in Go, or too large; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern."""

    occurs_in: Callable[[str], bool]
    """True if the pattern occurs anywhere in a text of at most ``max_chars``."""
    max_chars: int
    """Characters of a text: a longer one would take too long. The time is that of the text times
    the size of the compiled pattern, where ``[ab]{900}`` has 900 instructions.
    """


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern. Raises PatternError: the pattern is invalid."""
    if len(pattern) > limits.MAX_PATTERN_CHARS:
        raise PatternError(f"has more than {limits.MAX_PATTERN_CHARS} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = limits.MAX_PATTERN_MEMORY_BYTES
    try:
        compiled = re2.compile(pattern.encode(), options)
    except UnicodeEncodeError:
        raise PatternError("is not valid Unicode") from None
    except re2.error as error:
        raise PatternError(_reason(error)) from None
    # Positions would be converted between bytes and characters: matching bytes is faster.
    search = compiled.search
    return Pattern(
        occurs_in=lambda text: search(text.encode(errors="replace")) is not None,
        max_chars=limits.MAX_PATTERN_STEPS // max(1, compiled.programsize),
    )


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?\Z")
_DURATION = re.compile(r"[+-]?(0|(\d+(\.\d*)?(ns|us|µs|ms|s|m|h|d|w|hours?|minutes?|days?) ?)+)\Z")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*\Z")


def _parses(parse: Callable[[str], object]) -> Callable[[Any], bool]:
    def test(value: Any) -> bool:
        try:
            parse(value)
        except (ValueError, TypeError, binascii.Error):
            return False
        return True

    return test


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: pattern.match(value) is not None


def is_time(value: Any) -> bool:
    """Return True for a time as in the metadata of objects, with its zone."""
    is_text = isinstance(value, str) and _DATE_TIME.match(value) is not None
    return is_text and _parses(datetime.fromisoformat)(value.upper())


def _between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


STRING_FORMATS: Mapping[str, Callable[[Any], bool]] = {
    "byte": _parses(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _parses(ipaddress.ip_network),
    "date": _parses(date.fromisoformat),
    "date-time": is_time,
    "duration": _matches(_DURATION),
    "email": _matches(_EMAIL),
    "hostname": _matches(_HOST_NAME),
    "ipv4": _parses(ipaddress.IPv4Address),
    "ipv6": _parses(ipaddress.IPv6Address),
    "quantity": _matches(_QUANTITY),
    "uri": lambda text: bool(urlsplit(text).scheme),
    "uuid": _parses(UUID),
}
"""Tests of strings by format name. A format that is not listed is not checked."""

NUMBER_FORMATS: Mapping[str, Callable[[Any], bool]] = {
    "int32": _between(-(2**31), 2**31 - 1),
    "int64": _between(-(2**63), 2**63 - 1),
    "uint32": _between(0, 2**32 - 1),
    "uint64": _between(0, 2**64 - 1),
}
"""Tests of numbers by format name."""


ValueRule: TypeAlias = Callable[[Any, ParentPath, Segment, list[StatusCause]], None]
ValueTest: TypeAlias = Callable[[Any], bool]
MakeCause: TypeAlias = Callable[[str, Any], StatusCause]
"""Arguments: path and value."""

_TEXT, _NUMBER, _MEMBERS = (str,), (int, float), (list, dict)
_BOUNDS = (
    ("minimum", "exclusiveMinimum", operator.ge, operator.gt, "greater"),
    ("maximum", "exclusiveMaximum", operator.le, operator.lt, "less"),
)


def value_rules(schema: Json) -> list[ValueRule]:
    """Return the rules for numbers and texts. Each accepts values of other types."""
    return [*_number_rules(schema), *_string_rules(schema), *_enum_rule(schema)]


def size_rules(schema: Json, least: str, most: str, members: str) -> list[ValueRule]:
    """Return the rules for the number of items of a list, or of fields of an object."""
    rules: list[ValueRule] = []
    if (low := schema.get(least)) is not None:
        cause = _in_body(f"should have at least {low} {members}")
        rules.append(_rule(_MEMBERS, lambda v: len(v) >= low, lambda p, v: cause(p, len(v))))
    if (high := schema.get(most)) is not None:
        rules.append(
            _rule(
                _MEMBERS,
                lambda v: len(v) <= high,
                lambda path, v: field_causes.too_many(path, len(v), high),
            )
        )
    return rules


def _number_rules(schema: Json) -> Iterator[ValueRule]:
    for name, exclusive, compare, strictly, word in _BOUNDS:
        if (bound := schema.get(name)) is None:
            continue
        test, relation = compare, f"{word} than or equal to"
        if schema.get(exclusive):
            test, relation = strictly, f"{word} than"
        detail = f"should be {relation} {bound}"
        yield _rule(_NUMBER, _compared(test, bound), _in_body(detail))
    if (step := schema.get("multipleOf")) is not None:
        yield _rule(_NUMBER, lambda v: v % step == 0, _in_body(f"should be a multiple of {step}"))
    if (test_format := NUMBER_FORMATS.get(name := schema.get("format", ""))) is not None:
        yield _rule(_NUMBER, test_format, _in_body(f"must be of type {name}"))


def _compared(compare: Callable[[Any, Any], bool], bound: Any) -> ValueTest:
    return lambda value: compare(value, bound)


def _string_rules(schema: Json) -> Iterator[ValueRule]:
    if shortest := schema.get("minLength"):
        detail = f"should be at least {shortest} chars long"
        yield _rule(_TEXT, lambda v: len(v) >= shortest, _in_body(detail))
    if (longest := schema.get("maxLength")) is not None:
        yield _max_length_rule(longest)
    if (pattern := schema.get("pattern")) is not None:
        compiled = compile_pattern(pattern)
        most = compiled.max_chars
        yield _max_length_rule(most)
        # The other rule refuses a longer text.
        yield _rule(
            _TEXT,
            lambda v: len(v) > most or compiled.occurs_in(v),
            _in_body(f"should match '{pattern}'"),
        )
    if (test := STRING_FORMATS.get(name := schema.get("format", ""))) is not None:
        yield _rule(_TEXT, test, _in_body(f"must be of type {name}"))


def _enum_rule(schema: Json) -> list[ValueRule]:
    allowed: list[Any] | None = schema.get("enum")
    if allowed is None:
        return []
    texts = frozenset(value for value in allowed if isinstance(value, str))
    others = [value for value in allowed if not isinstance(value, str)]

    def rule(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        if value not in (texts if type(value) is str else others):
            causes.append(
                field_causes.unsupported(format_field_path(parent, segment), value, allowed)
            )

    return [rule]


def _max_length_rule(limit: int) -> ValueRule:
    return _rule(
        _TEXT,
        lambda v: len(v) <= limit,
        lambda path, _: field_causes.too_long(path, limit, "characters"),
    )


def _in_body(detail: str) -> MakeCause:
    return lambda path, value: field_causes.invalid(path, value, f"{path} in body {detail}")


def _rule(types: tuple[type, ...], test: ValueTest, make_cause: MakeCause) -> ValueRule:
    def rule(value: Any, parent: ParentPath, segment: Segment, causes: list[StatusCause]) -> None:
        if type(value) in types and not test(value):
            causes.append(make_cause(format_field_path(parent, segment), value))

    return rule
