"""Exact resource quantities: ``500m`` cpu, ``4Gi`` of memory, ``1e3``.

A quantity is an integer number of billionths, plus the suffix format it was written with, so that
it is formatted as Kubernetes does. Finer fractions are rounded up (away from zero); amounts are
capped at 2**63 - 1, as in Kubernetes. Quantities are equal if the amounts are.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

_NANO = 10**9
_LARGEST = (2**63 - 1) * _NANO
_MAX_TEXT_LENGTH = 200
_HUGE_EXPONENT = 60  # beyond it every amount rounds to zero or exceeds the maximum

_TEXT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(.*)", re.DOTALL | re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()}
_BINARY_SUFFIX = {power: suffix for suffix, power in _BINARY.items()}
_BINARY_SUFFIX[0] = ""
_SUGGESTIONS = {"K": "Ki or k", "KI": "Ki", "KB": "Ki or k", "MB": "Mi or M", "GB": "Gi or G",
           "TB": "Ti or T", "KIB": "Ki", "MIB": "Mi", "GIB": "Gi", "TIB": "Ti", "B": "no suffix",
           "g": "G or Gi", "t": "T or Ti", "GI": "Gi", "MI": "Mi", "gi": "Gi", "mi": "Mi",
           "ki": "Ki"}  # fmt: skip


class QuantityError(ValueError):
    """The text is not a quantity; carries the problem and a remedy."""

    def __init__(self, written: object, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        text = repr(written)
        super().__init__(f"{text[:40]}{'…' if len(text) > 40 else ''} {problem}; {remedy}")


class QuantityFormat(StrEnum):
    """The family of suffixes a quantity is written with."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact quantity."""

    nano: int
    """Billionths of the unit."""
    format: QuantityFormat = field(default=QuantityFormat.DECIMAL, compare=False)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero: the unit for cpu."""
        return _divide_up(self.nano, 10**6)

    @property
    def value(self) -> int:
        """Whole units, rounded away from zero: the unit for bytes and devices."""
        return _divide_up(self.nano, _NANO)

    def __add__(self, other: "Quantity") -> "Quantity":
        """Add, in the format of the first operand that is not zero."""
        return Quantity(_clamp(self.nano + other.nano), self.format if self.nano else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        """Subtract, in the format of the first operand that is not zero."""
        return Quantity(_clamp(self.nano - other.nano), self.format if self.nano else other.format)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nano, self.format)

    def __mul__(self, times: int) -> "Quantity":
        return Quantity(_clamp(self.nano * times), self.format)

    def __bool__(self) -> bool:
        return self.nano != 0

    def __str__(self) -> str:
        if not self.nano:
            return "0"
        whole, fraction = divmod(self.nano, _NANO)
        if self.format is QuantityFormat.BINARY and not fraction and abs(whole) >= 1024:
            return _format_scaled(whole, 1024, 10, 60, lambda power: _BINARY_SUFFIX[power])
        if self.format is QuantityFormat.EXPONENT:
            return _format_scaled(
                self.nano, 1000, 3, 27, lambda power: f"e{power - 9}" if power != 9 else ""
            )
        return _format_scaled(self.nano, 1000, 3, 27, lambda power: _DECIMAL_SUFFIX[power - 9])


def parse_quantity(written: str | int | float) -> Quantity:
    """Parse a quantity such as ``"500m"``, ``"1.5Gi"``, ``"1e3"``, ``2`` or ``0.5``. Raises
    QuantityError: the text is not a quantity; the message contains a remedy.
    """
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise QuantityError(written, "is not a quantity", "write a number such as 2 or 500m")
    if isinstance(written, int):
        return Quantity(_clamp(written * _NANO))
    return _parse(repr(written) if isinstance(written, float) else written)


def quantity_or_none(value: Any) -> Quantity | None:
    """Parse ``"1.5Gi"``, ``"250m"`` or ``2``. Returns None if the value is not a quantity."""
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def canonical_quantity(written: str | int | float) -> str:
    """Return the form that an API server stores: ``"1000m"`` becomes ``"1"``. Raises QuantityError:
    the text is not a quantity.
    """
    return str(parse_quantity(written))


def parse_whole(written: str | int | float) -> int:
    """Parse a quantity in whole units, rounded up (``"1Ki"`` is 1024). Raises QuantityError: the
    text is not a quantity.
    """
    return parse_quantity(written).value


@lru_cache(maxsize=8192)
def _parse(text: str) -> Quantity:
    if len(text) > _MAX_TEXT_LENGTH:
        problem = f"has {len(text)} characters"
        raise QuantityError(text, problem, f"write at most {_MAX_TEXT_LENGTH}")
    match = _TEXT.fullmatch(text)
    sign, integer, fraction, suffix = match.groups() if match else ("", "", None, text)
    fraction = fraction or ""
    if not integer and not fraction:
        raise _quantity_error(text, suffix)
    digits = int(integer + fraction)
    nano, form = _to_nano(digits, 9 - len(fraction), suffix, text)
    return Quantity(_clamp(-nano if sign == "-" else nano), form)


def _to_nano(digits: int, power: int, suffix: str, text: str) -> tuple[int, QuantityFormat]:
    """Return ``digits`` times ten to the ``power`` times the suffix, in billionths, rounded up."""
    if suffix in _DECIMAL:
        return _times_ten(digits, power + _DECIMAL[suffix]), QuantityFormat.DECIMAL
    if suffix in _BINARY:
        return _times_ten(digits << _BINARY[suffix], power), QuantityFormat.BINARY
    if exponent := _EXPONENT.fullmatch(suffix):
        return _times_ten(digits, power + int(exponent[1])), QuantityFormat.EXPONENT
    raise _quantity_error(text, suffix)


def _times_ten(digits: int, power: int) -> int:
    if not digits or power >= _HUGE_EXPONENT:
        return _LARGEST if digits else 0
    if power >= 0:
        factor: int = 10**power
        return digits * factor
    divisor: int = 10 ** min(-power, 2 * _MAX_TEXT_LENGTH)
    return _divide_up(digits, divisor)


def _divide_up(amount: int, divisor: int) -> int:
    """Divide, rounding away from zero."""
    return -(-amount // divisor) if amount >= 0 else amount // divisor


def _clamp(nano: int) -> int:
    return max(-_LARGEST, min(_LARGEST, nano))


def _format_scaled(
    amount: int, base: int, step: int, top: int, suffix: Callable[[int], str]
) -> str:
    """Divide by ``base`` while there is no remainder; append the suffix of the power reached."""
    power = 0
    while power < top and amount % base == 0:
        amount //= base
        power += step
    return f"{amount}{suffix(power)}"


def _quantity_error(text: str, suffix: str) -> QuantityError:
    if not text.strip():
        return QuantityError(text, "is empty", "write a number such as 2, 500m or 4Gi")
    if any(sign.isspace() for sign in text):
        return QuantityError(text, "has spaces", f"write {''.join(text.split())!r}")
    if text.count(",") == 1:
        return QuantityError(text, "has a comma", f"write {text.replace(',', '.')!r}")
    likely = _SUGGESTIONS.get(suffix) or _SUGGESTIONS.get(suffix.upper())
    if likely and suffix != text:
        problem = f"ends in {suffix!r}, which is not a unit"
        return QuantityError(text, problem, f"did you mean {likely}?")
    return QuantityError(
        text,
        "is not a quantity",
        "write a number, or one with a suffix: m for thousandths, k M G T P E for powers of "
        "1000, Ki Mi Gi Ti Pi Ei for powers of 1024",
    )
