"""Quantities inside objects: parsed without raising, and written in canonical form."""

from typing import Any

from gangline.api.quantity import Quantity, QuantityError, canonical_quantity, parse_quantity


def quantity_or_none(value: Any) -> Quantity | None:
    """Parse ``"1.5Gi"``, ``"250m"`` or ``2``. Returns None if the value is not a quantity."""
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def canonicalize_quantities(quantities: Any) -> None:
    """Rewrite the values of a resource list in place: ``"1000m"`` becomes ``"1"``."""
    if isinstance(quantities, dict):
        for name, value in quantities.items():
            if quantity_or_none(value) is not None:
                quantities[name] = canonical_quantity(value)
