"""Requests as columns of the node table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gangline.scheduler.model import Request
from gangline.scheduler.plugins.node_scores import ScoreWeights, is_device

ALWAYS_BALANCED: Request = (("cpu", 0), ("memory", 0))
"""Resources whose balance is scored for every pod that requests any of the balanced ones."""


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """A request in columns of the node table."""

    terms: tuple[tuple[int, int, float], ...]
    """Column, amount (above 0) and packing weight of each requested resource."""
    wants_device: bool
    balanced: tuple[tuple[int, int], ...] = ()
    """Column and amount of the resources whose balance is scored; empty: no score."""


class CountedResource(NamedTuple):
    """The amount of a resource that a node does not report itself."""

    total: int
    used: int = 0
    lasting: int = 0
    """The part of the usage that may never end."""


def columns_needed(request: Request, weights: ScoreWeights) -> Request:
    """Return the resources that need columns to compare a request with nodes."""
    return (*request, *ALWAYS_BALANCED) if weights.balance else request


def resource_demand(
    request: Request, columns: Mapping[str, int], weights: ScoreWeights
) -> ResourceDemand:
    """Return a request in columns; ``columns`` has all of ``columns_needed``."""
    asked = {name: amount for name, amount in request if amount > 0}
    devices = [name for name in asked if is_device(name)]
    balanced = dict(ALWAYS_BALANCED) | {name: asked[name] for name in devices}
    balanced |= {name: asked[name] for name in balanced if name in asked}
    balances = weights.balance and any(balanced.values())
    return ResourceDemand(
        terms=tuple(
            (columns[name], amount, weights.resource_weight(name)) for name, amount in asked.items()
        ),
        wants_device=bool(devices),
        balanced=tuple((columns[name], amount) for name, amount in balanced.items())
        if balances
        else (),
    )
