"""Whether a toleration matches a taint: one rule for the scheduler and for evictions."""

from typing import Protocol


class _TaintFields(Protocol):
    @property
    def key(self) -> str:
        """Key of the taint; empty in a toleration matches every key."""

    @property
    def value(self) -> str:
        """Value that a toleration without operator Exists must equal."""

    @property
    def effect(self) -> str:
        """Effect on pods; empty in a toleration matches every effect."""


class _Toleration(_TaintFields, Protocol):
    @property
    def operator(self) -> str:
        """``Exists`` matches any value; otherwise the values must be equal."""


def tolerates(toleration: _Toleration, taint: _TaintFields) -> bool:
    """Whether a toleration matches a taint, by the rules of Kubernetes."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value
