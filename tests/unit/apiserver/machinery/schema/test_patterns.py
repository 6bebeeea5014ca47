"""Patterns have the syntax and the meaning of Go's regexp package."""

import pytest

from gangline.api.meta.objects import StatusCause
from gangline.local import limits
from gangline.local.apiserver.machinery.schema.value_rules import (
    PatternError,
    compile_pattern,
    value_rules,
)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^a$", "a", True),
        ("^a$", "a\n", False),
        ("b", "abc", True),
        (r"a\z", "ba", True),
        ("[[:alpha:]]", "é", False),
        (r"\pL", "é", True),
        ("^.$", "é", True),
        ("(?i)A", "a", True),
        ("(?P<name>a)", "a", True),
        ("^(a+)+$", "a" * 100_000 + "b", False),
    ],
)
def test_pattern_matches_as_in_go(pattern: str, text: str, matches: bool) -> None:
    assert compile_pattern(pattern).occurs_in(text) is matches


@pytest.mark.parametrize(
    "pattern", ["(?=a)", r"(a)\1", r"a\Z", "a{1001}", "(", "a" * (limits.MAX_PATTERN_CHARS + 1)]
)
def test_pattern_that_go_does_not_accept_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        ("^[ab]{1,1000}$", "a" * 1000, ""),
        ("^[ab]{1,1000}$", "a" * 1001, "should match"),
        ("^[ab]*$", "a" * 1_000_000, ""),
        ("[ab]*a[ab]{900}c|[ab]*b[ab]{900}d", "a" * 1_000_000, "may not be more than"),
    ],
)
def test_text_that_would_take_a_pattern_too_long_is_refused(
    pattern: str, text: str, message: str
) -> None:
    causes: list[StatusCause] = []
    for rule in value_rules({"pattern": pattern}):
        rule(text, None, "field", causes)
    assert [message in (cause.message or "") for cause in causes] == [True] * bool(message)
