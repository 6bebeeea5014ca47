"""Regular expressions of users, with the syntax of Go and in time linear in the text.

Kubernetes compiles the ``pattern`` of a schema with Go's ``regexp``. RE2, from which that package
is derived, has the same syntax and never backtracks: ``^(a+)+$`` takes as long as ``^a+$``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import re2

from gangline.local import limits

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
    """Compile a pattern.

    Raises:
        PatternError: the pattern is invalid.
    """
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
