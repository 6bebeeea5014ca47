"""Whether a pod puts up with a node's taint: one rule for the scheduler and for evictions."""

from typing import Protocol


class _Marked(Protocol):
    @property
    def key(self) -> str:
        """What it is about; empty in a toleration means everything."""

    @property
    def value(self) -> str:
        """What a toleration without operator Exists has to equal."""

    @property
    def effect(self) -> str:
        """What it does to pods; empty in a toleration means all effects."""


class _Toleration(_Marked, Protocol):
    @property
    def operator(self) -> str:
        """``Exists`` for any value; else the values must be equal."""


def tolerates(toleration: _Toleration, taint: _Marked) -> bool:
    """Tell if a toleration puts up with a taint (Kubernetes' rules)."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value
