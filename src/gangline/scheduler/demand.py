"""What a pod asks for, ready to be compared with the arrays of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gangline.scheduler.model import Request
from gangline.scheduler.plugins.node_scores import Weights, is_device

ALWAYS_BALANCED: Request = (("cpu", 0), ("memory", 0))
"""Resources whose balance counts for every pod that asks for any that does."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A request, ready to be compared with the arrays."""

    parts: tuple[tuple[int, int, float], ...]
    """Column, amount (more than nothing) and weight in packing, of each resource asked for."""
    wants_device: bool
    balanced: tuple[tuple[int, int], ...] = ()
    """Column and amount of the resources that are to be used evenly; empty: that is no matter."""


class Stock(NamedTuple):
    """What a node has of something that it does not report itself."""

    has: int
    used: int = 0
    lasting: int = 0
    """The part of what is used that need not ever end."""


def columns_for(request: Request, weights: Weights) -> Request:
    """Return what needs columns for a request to be compared with nodes."""
    return (*request, *ALWAYS_BALANCED) if weights.balance else request


def demand_of(request: Request, columns: Mapping[str, int], weights: Weights) -> Demand:
    """Return a request as arrays understand it; ``columns`` has all of ``columns_for``."""
    asked = {name: amount for name, amount in request if amount > 0}
    devices = [name for name in asked if is_device(name)]
    balanced = dict(ALWAYS_BALANCED) | {name: asked[name] for name in devices}
    balanced |= {name: asked[name] for name in balanced if name in asked}
    balances = weights.balance and any(balanced.values())
    return Demand(
        parts=tuple((columns[name], amount, weights.of(name)) for name, amount in asked.items()),
        wants_device=bool(devices),
        balanced=tuple((columns[name], amount) for name, amount in balanced.items())
        if balances
        else (),
    )
