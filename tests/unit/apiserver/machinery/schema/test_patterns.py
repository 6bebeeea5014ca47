"""Patterns have the syntax and the meaning of Go's regexp package."""

import pytest

from gangline.local import limits
from gangline.local.apiserver.machinery.schema.patterns import PatternError, compile_pattern


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
    assert compile_pattern(pattern)(text) is matches


@pytest.mark.parametrize(
    "pattern", ["(?=a)", r"(a)\1", r"a\Z", "a{1001}", "(", "a" * (limits.MAX_PATTERN_CHARS + 1)]
)
def test_pattern_that_go_does_not_accept_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)
