"""Rules of a schema for one value: bounds, lengths, patterns, formats, enums."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from gangline.api.meta import StatusCause
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.formats import NUMBER_FORMATS, STRING_FORMATS
from gangline.local.apiserver.machinery.schemas import Json, Path, Segment, render

Rule: TypeAlias = Callable[[Any, Path, Segment, list[StatusCause]], None]
Test: TypeAlias = Callable[[Any], bool]


def number_rules(schema: Json) -> list[Rule]:
    """Return the rules for numbers. They accept values of other types."""
    rules: list[Rule] = []
    if (low := schema.get("minimum")) is not None:
        if schema.get("exclusiveMinimum"):
            rules.append(_number(lambda v: v > low, f"should be greater than {low}"))
        else:
            rules.append(_number(lambda v: v >= low, f"should be greater than or equal to {low}"))
    if (high := schema.get("maximum")) is not None:
        if schema.get("exclusiveMaximum"):
            rules.append(_number(lambda v: v < high, f"should be less than {high}"))
        else:
            rules.append(_number(lambda v: v <= high, f"should be less than or equal to {high}"))
    if (step := schema.get("multipleOf")) is not None:
        rules.append(_number(lambda v: v % step == 0, f"should be a multiple of {step}"))
    if (test := NUMBER_FORMATS.get(name := schema.get("format", ""))) is not None:
        rules.append(_number(test, f"must be of type {name}"))
    return rules


def string_rules(schema: Json) -> list[Rule]:
    """Return the rules for strings. They accept values of other types."""
    rules: list[Rule] = []
    if shortest := schema.get("minLength"):
        detail = f"should be at least {shortest} chars long"
        rules.append(_text(lambda v: len(v) >= shortest, detail))
    if (longest := schema.get("maxLength")) is not None:
        rules.append(_longest(longest))
    if (pattern := schema.get("pattern")) is not None:
        found = go_pattern(pattern).search
        rules.append(_text(lambda v: found(v) is not None, f"should match '{pattern}'"))
    if (test := STRING_FORMATS.get(name := schema.get("format", ""))) is not None:
        rules.append(_text(test, f"must be of type {name}"))
    return rules


def enum_rule(schema: Json) -> list[Rule]:
    allowed: list[Any] | None = schema.get("enum")
    if allowed is None:
        return []

    def rule(value: Any, parent: Path, segment: Segment, causes: list[StatusCause]) -> None:
        if value not in allowed:
            causes.append(field_errors.unsupported(render(parent, segment), value, allowed))

    return [rule]


def size_rules(schema: Json, least: str, most: str, members: str) -> list[Rule]:
    low, high = schema.get(least), schema.get(most)
    if low is None and high is None:
        return []

    def rule(value: Any, parent: Path, segment: Segment, causes: list[StatusCause]) -> None:
        count = len(value)
        if low is not None and count < low:
            path = render(parent, segment)
            detail = f"{path} in body should have at least {low} {members}"
            causes.append(field_errors.invalid(path, count, detail))
        if high is not None and count > high:
            causes.append(field_errors.too_many(render(parent, segment), count, high))

    return [rule]


def go_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a Go pattern, where ``$`` matches only the very end and not before a final newline.

    Raises:
        re.error: the pattern uses syntax that Python does not have.
    """
    pattern = re.sub(r"\\z", r"\\Z", pattern)
    if pattern.endswith("$") and not pattern.endswith(r"\$"):
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern)


def _number(test: Test, detail: str) -> Rule:
    def rule(value: Any, parent: Path, segment: Segment, causes: list[StatusCause]) -> None:
        if type(value) in (int, float) and not test(value):
            path = render(parent, segment)
            causes.append(field_errors.invalid(path, value, f"{path} in body {detail}"))

    return rule


def _text(test: Test, detail: str) -> Rule:
    def rule(value: Any, parent: Path, segment: Segment, causes: list[StatusCause]) -> None:
        if type(value) is str and not test(value):
            path = render(parent, segment)
            causes.append(field_errors.invalid(path, value, f"{path} in body {detail}"))

    return rule


def _longest(limit: int) -> Rule:
    def rule(value: Any, parent: Path, segment: Segment, causes: list[StatusCause]) -> None:
        if type(value) is str and len(value) > limit:
            causes.append(field_errors.too_long(render(parent, segment), limit, "characters"))

    return rule
