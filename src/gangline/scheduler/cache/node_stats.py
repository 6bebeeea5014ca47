"""Facts about nodes that are derived once and cached until nodes change, and requests as columns.

Each mask has an element for each row; elements of empty rows are False.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.filters import has_blocking_taint
from gangline.scheduler.plugins.scores import ScoreWeights, is_device
from gangline.scheduler.types.types import NodeInfo, NodeName, Request

MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
)
"""Labels that name the device model; the first one that any node has is used."""

Mask = NDArray[np.bool_]
NodeInfos = Sequence[NodeInfo | None]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModels:
    """The device models of the nodes, if there are several."""

    by_row: Sequence[str]
    """The model of each row; empty: its node does not name one."""
    present: frozenset[str]
    """Models of which some node has devices."""
    masks: Mapping[str, Mask]
    """By model: the rows of this model, and the rows without devices."""


def device_models_of(facts: NodeInfos, has_devices: Mask) -> DeviceModels | None:
    """Return the device models that nodes name; None: all devices are of one model."""
    label = next((label for label in MODEL_LABELS if _is_label_used(label, facts)), None)
    if label is None:
        return None
    of = [dict(node.labels).get(label, "") if node is not None else "" for node in facts]
    there = frozenset(of[row] for row in np.flatnonzero(has_devices).tolist())
    if len(there) < 2:
        return None
    named = np.array(of)
    return DeviceModels(of, there, {each: (named == each) | ~has_devices for each in set(of)})


def _is_label_used(label: str, facts: NodeInfos) -> bool:
    return any(node is not None and label in dict(node.labels) for node in facts)


def _is_usable(node: NodeInfo | None) -> bool:
    return node is not None and node.ready and not node.unschedulable


def _is_tainted(node: NodeInfo | None) -> bool:
    return node is not None and has_blocking_taint(node)


def _has_devices(node: NodeInfo | None) -> bool:
    return node is not None and any(
        amount > 0 and is_device(name) for name, amount in node.allocatable
    )


def _with_row(trait: Mask | None, row: int, value: bool) -> Mask | None:
    if trait is None or trait[row] == value:
        return trait
    changed = trait.copy()
    changed[row] = value
    return changed


class NodeStats:
    """Cached masks of a node table, by row."""

    def __init__(self) -> None:
        self._parts: dict[str, NDArray[np.intp]] = {}
        self._has_devices: Mask | None = None
        self._usable: Mask | None = None
        self._tainted: Mask | None = None
        self._models: DeviceModels | None = None
        self._models_known = False

    def invalidate(self) -> None:
        """Drop everything: rows were added."""
        self._parts.clear()
        self._usable = self._tainted = self._has_devices = None
        self._models_known = False

    def update_row(self, row: int, before: NodeInfo | None, after: NodeInfo | None) -> None:
        """Update the masks for a changed row. Masks are copied on change, so callers keep the old
        ones.
        """
        self._usable = _with_row(self._usable, row, _is_usable(after))
        self._tainted = _with_row(self._tainted, row, _is_tainted(after))
        if before is None or after is None or before.labels != after.labels:
            self._parts.clear()
            self._models_known = False
        if before is None or after is None or before.allocatable != after.allocatable:
            self._has_devices = _with_row(self._has_devices, row, _has_devices(after))
            self._models_known = False

    def topology_domains_of(
        self, label: str, rows: Mapping[NodeName, int], facts: NodeInfos
    ) -> NDArray[np.intp]:
        """Return the topology domain number of each row by a node label; -1 without the label."""
        known = self._parts.get(label)
        if known is None:
            values: dict[str, int] = {}
            known = np.full(len(facts), -1, dtype=np.intp)
            for row in rows.values():
                node = facts[row]
                value = dict(node.labels).get(label) if node is not None else None
                if value is not None:
                    known[row] = values.setdefault(value, len(values))
            self._parts[label] = known
        return known

    def usable(self, facts: NodeInfos) -> Mask:
        if self._usable is None:
            self._usable = np.array([_is_usable(node) for node in facts], dtype=bool)
        return self._usable

    def tainted(self, facts: NodeInfos) -> Mask:
        if self._tainted is None:
            self._tainted = np.array([_is_tainted(node) for node in facts], dtype=bool)
        return self._tainted

    def has_devices(self, facts: NodeInfos) -> Mask:
        if self._has_devices is None:
            self._has_devices = np.array([_has_devices(node) for node in facts], dtype=bool)
        return self._has_devices

    def models(self, facts: NodeInfos) -> DeviceModels | None:
        if not self._models_known:
            self._models = device_models_of(facts, self.has_devices(facts))
            self._models_known = True
        return self._models


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
