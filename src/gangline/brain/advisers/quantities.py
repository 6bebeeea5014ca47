"""Quantities as people write them, and back: ``11.3Gi``, ``2.5 cores``, ``11 min``, ``25 %``.

Texts have three significant digits. Each kind is a pair of a format and a parser with a regular
expression; formatting a parsed text gives the same text, so that a sentence and the numbers beside
it agree.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

Value = str | int | float | list[str]

_NUMBER = r"-?\d+(?:\.\d+)?"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._/:@-]*[A-Za-z0-9])?"
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QuantityKind:
    """How values of one kind are written."""

    pattern: str
    """Regular expression without groups."""
    write: Callable[[Value], str]
    read: Callable[[str], Value]

    def text(self, value: Value) -> str:
        """Write a value. A text at the edge between two units is rounded until it is stable."""
        text = self.write(value)
        for _ in range(3):
            again = self.write(self.read(text))
            if again == text:
                break
            text = again
        return text


@lru_cache(maxsize=65_536)
def three_digits(value: float) -> str:
    """A number with three significant digits, never in exponent notation."""
    if value == 0:
        return "0"
    digits = f"{value:.2e}"
    mantissa, _, exponent = digits.partition("e")
    places = max(2 - int(exponent), 0)
    number = float(f"{mantissa}e{exponent}")
    text = f"{number:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(units: tuple[tuple[str, float, float], ...]) -> QuantityKind:
    """A kind with several units: name, size, and the value from which the next one is used."""
    sizes = {name: size for name, size, _ in units}

    def write(value: Value) -> str:
        number = _number(value)
        fitting = (
            (name, number / size)
            for name, size, limit in units
            if abs(float(three_digits(number / size))) < limit
        )
        name, scaled = next(fitting)
        return f"{three_digits(scaled)}{name}"

    def read(text: str) -> Value:
        match = re.fullmatch(rf"({_NUMBER})(.*)", text)
        if match is None or match[2] not in sizes:
            raise ValueError(f"not a quantity: {text!r}")
        return float(match[1]) * sizes[match[2]]

    names = "|".join(re.escape(name) for name in sorted(sizes, key=len, reverse=True))
    return QuantityKind(rf"{_NUMBER}(?:{names})", write, read)


def _number(value: Value) -> float:
    if isinstance(value, str | list):
        raise TypeError(f"a number is needed, not {value!r}")
    return float(value)


def _counted(noun: str) -> QuantityKind:
    """A count with its noun, ``1 run`` or ``9 runs``."""

    def write(value: Value) -> str:
        count = round(_number(value))
        return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

    return QuantityKind(rf"-?\d+ {noun}s?", write, lambda text: int(text.split()[0]))


def _day(value: Value) -> str:
    at = _EPOCH + timedelta(milliseconds=_number(value))
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def _read_day(text: str) -> Value:
    day, month, year = text.split()
    at = datetime(int(year), _MONTHS.index(month) + 1, int(day), tzinfo=UTC)
    return round((at - _EPOCH).total_seconds() * 1000)


def _write_level(value: Value) -> str:
    return _LEVELS[min(max(round(_number(value)), 0), len(_LEVELS) - 1)]


def _read_level(text: str) -> Value:
    return _LEVELS.index(text)


def _minute(value: Value) -> str:
    at = _EPOCH + timedelta(milliseconds=_number(value))
    return f"{_day(value)} at {at:%H:%M} UTC"


def _read_minute(text: str) -> Value:
    day, _, clock = text.partition(" at ")
    hours, minutes = clock.removesuffix(" UTC").split(":")
    start = _read_day(day)
    assert isinstance(start, int)
    return start + (int(hours) * 60 + int(minutes)) * 60_000


_LEVELS = (
    "same specification",
    "same family",
    "same family but for command or owner",
    "same image",
    "nearest model",
)
"""Levels of similarity in words, from 0 on."""
_DAY_PATTERN = r"\d{1,2} (?:" + "|".join(_MONTHS) + r") \d{4,}"

KINDS: dict[str, QuantityKind] = {
    "bytes": _scaled(
        tuple(
            (name, 1024.0**power, 1000.0 if name != "Pi" else float("inf"))
            for power, name in enumerate(("B", "Ki", "Mi", "Gi", "Ti", "Pi"))
        )
    ),
    "millicores": _scaled(((" cores", 1000.0, float("inf")),)),
    "seconds": _scaled(
        (
            (" s", 1.0, 120.0),
            (" min", 60.0, 120.0),
            (" h", 3600.0, 48.0),
            (" d", 86400.0, float("inf")),
        )
    ),
    "percent": _scaled(((" %", 0.01, float("inf")),)),
    "points": _scaled(((" %", 1.0, float("inf")),)),
    "large": _scaled(
        (
            ("", 1.0, 1e6),
            (" million", 1e6, 1000.0),
            (" billion", 1e9, 1000.0),
            (" trillion", 1e12, float("inf")),
        )
    ),
    "number": QuantityKind(_NUMBER, lambda value: three_digits(_number(value)), float),
    "count": QuantityKind(r"-?\d+", lambda value: str(round(_number(value))), int),
    "name": QuantityKind(_NAME, str, str),
    "names": QuantityKind(
        rf"{_NAME}(?:, {_NAME})*",
        lambda value: ", ".join(value) if isinstance(value, list) else str(value),
        lambda text: text.split(", "),
    ),
    "level": QuantityKind("|".join(_LEVELS), _write_level, _read_level),
    "day": QuantityKind(_DAY_PATTERN, _day, _read_day),
    "time": QuantityKind(rf"{_DAY_PATTERN} at \d\d:\d\d UTC", _minute, _read_minute),
}
"""Kinds by the name that templates use; beside them any noun, as in ``{runs:n run}``."""


def kind_of(name: str) -> QuantityKind:
    """Return the kind of a name in a template.

    Raises:
        KeyError: there is no such kind.
    """
    if name.startswith("n "):
        return _counted(name.removeprefix("n "))
    return KINDS[name]
