"""Figures as people write them: three significant digits, never an exponent.

``format_figure`` keeps the given unit (``1,460 Gbit/s``), ``format_scaled`` chooses the prefix of
the unit (``1.46 Tbit/s``), ``format_count`` counts in thousands to trillions (``7B`` parameters).
"""

import math
from typing import Final

DIGITS: Final = 3
_EXACT: Final = 15
"""Digits that a float holds for certain: with more, 0.3 may be 0.30000000000000004."""
_PREFIXES: Final = ("n", "µ", "m", "", "k", "M", "G", "T", "P", "E", "Z", "Y")
_COUNTS: Final = ("", "K", "M", "B", "T")


def plain_number(value: float, digits: int = _EXACT) -> str:
    """Return a number with at most so many significant digits: ``0.3``, ``1460``."""
    if value == 0 or not math.isfinite(value):
        return str(value) if value else "0"
    mantissa, _, exponent = f"{abs(value):.{digits - 1}e}".partition("e")
    figures, point = mantissa.replace(".", ""), int(exponent) + 1
    figures = "0" * (1 - point) + figures + "0" * (point - digits)
    whole, fraction = figures[: max(point, 1)], figures[max(point, 1) :].rstrip("0")
    return ("-" if value < 0 else "") + whole + (f".{fraction}" if fraction else "")


def format_figure(value: float, unit: str = "", digits: int = DIGITS) -> str:
    """Return a figure with its unit and separators of thousands: ``1,460 Gbit/s``."""
    text = plain_number(value, digits)
    whole, point, fraction = text.lstrip("-").partition(".")
    number = f"{int(whole):,}" if whole.isdigit() else whole
    sign = "-" if text.startswith("-") else ""
    return f"{sign}{number}{point}{fraction}" + (f" {unit}" if unit else "")


def format_scaled(value: float, unit: str, digits: int = DIGITS) -> str:
    """Return a figure with the prefix that suits it: ``1.46 Tbit/s``, ``68 µs``, ``98 GB``.

    Seconds have no prefix for more than one.
    """
    plain = _PREFIXES.index("")
    prefixes = _PREFIXES[: plain + 1] if unit == "s" else _PREFIXES
    number, prefix = _scale(value, prefixes, plain, digits)
    return format_figure(number, f"{prefix}{unit}", digits)


def format_count(value: float) -> str:
    """Return a count as the field writes it: ``7B``, ``1.28M``, ``512``."""
    number, suffix = _scale(value, _COUNTS, 0, DIGITS)
    return f"{format_figure(number)}{suffix}"


def _scale(value: float, prefixes: tuple[str, ...], start: int, digits: int) -> tuple[float, str]:
    """Return the value in the largest unit of which it has at least one, and its prefix."""
    place = start
    rounded = abs(float(plain_number(value, digits)))
    while rounded >= 1000 and place < len(prefixes) - 1:
        value, place = value / 1000, place + 1
        rounded = abs(float(plain_number(value, digits)))
    while 0 < rounded < 1 and place > 0:
        value, place = value * 1000, place - 1
        rounded = abs(float(plain_number(value, digits)))
    return value, prefixes[place]
