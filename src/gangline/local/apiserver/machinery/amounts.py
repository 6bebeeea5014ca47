"""Quantities inside objects: parsed without raising, and written in canonical form."""

from typing import Any

from gangline.api.quantity import Quantity, QuantityError, canonical, parse_quantity


def amount(value: Any) -> Quantity | None:
    """Parse ``"1.5Gi"``, ``"250m"`` or ``2``. Returns None if the value is not a quantity."""
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def canonicalize(amounts: Any) -> None:
    """Rewrite the values of a resource list in place: ``"1000m"`` becomes ``"1"``."""
    if isinstance(amounts, dict):
        for name, value in amounts.items():
            if amount(value) is not None:
                amounts[name] = canonical(value)
