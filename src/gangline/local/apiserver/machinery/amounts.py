"""Quantities inside objects: read without raising, and written the way Kubernetes stores them."""

from typing import Any

from gangline.api.quantity import Quantity, QuantityError, canonical, parse_quantity


def amount(value: Any) -> Quantity | None:
    """Return the exact amount of ``"1.5Gi"``, ``"250m"`` or ``2``; None when it is none."""
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def canonicalize(amounts: Any) -> None:
    """Rewrite, in place, the values of a resource list: ``"1000m"`` becomes ``"1"``."""
    if isinstance(amounts, dict):
        for name, value in amounts.items():
            if amount(value) is not None:
                amounts[name] = canonical(value)
