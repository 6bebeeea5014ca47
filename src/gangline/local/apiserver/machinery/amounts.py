"""Quantities as exact numbers, for comparison and arithmetic; None for what is no quantity."""

import re
from fractions import Fraction
from typing import Any

_PATTERN = re.compile(
    r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?", re.ASCII
)
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL: dict[str, Fraction] = {
    letter: Fraction(10) ** power
    for letter, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
}


def amount(value: Any) -> Fraction | None:
    """Return the exact value of ``"1.5Gi"``, ``"250m"`` or ``2``; None when it is no quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _PATTERN.fullmatch(str(value))
    if match is None:
        return None
    sign, digits, binary, decimal, exponent = match.groups()
    number = Fraction(sign + digits)
    if binary:
        return number * _BINARY[binary]
    if decimal:
        return number * _DECIMAL[decimal]
    return number * Fraction(f"1e{exponent}") if exponent else number
