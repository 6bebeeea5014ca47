"""What is so of nodes as they stand, whoever asks: worked out once, kept until nodes change. Pure.

Each trait has a place for each row; rows without a node have none of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import NodeFacts, NodeName
from gangline.scheduler.plugins.node_filters import keeps_off
from gangline.scheduler.plugins.node_scores import is_device

MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
)
"""Where nodes say what devices they have; the first that any node has counts."""

Mask = NDArray[np.bool_]
Facts = Sequence[NodeFacts | None]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModels:
    """The models of the nodes' devices, where there are several."""

    of: Sequence[str]
    """The model of each row; empty: its node does not say."""
    there: frozenset[str]
    """Those that some node has devices of."""
    rows: Mapping[str, Mask]
    """By model: the rows of it, and those without any devices."""


def models_of(facts: Facts, has_devices: Mask) -> DeviceModels | None:
    """Return the models that nodes say their devices are of; None: all are of one."""
    label = next((label for label in MODEL_LABELS if _is_said(label, facts)), None)
    if label is None:
        return None
    of = [dict(node.labels).get(label, "") if node is not None else "" for node in facts]
    there = frozenset(of[row] for row in np.flatnonzero(has_devices).tolist())
    if len(there) < 2:
        return None
    named = np.array(of)
    return DeviceModels(of, there, {each: (named == each) | ~has_devices for each in set(of)})


def _is_said(label: str, facts: Facts) -> bool:
    return any(node is not None and label in dict(node.labels) for node in facts)


def _is_usable(node: NodeFacts | None) -> bool:
    return node is not None and node.ready and not node.unschedulable


def _is_tainted(node: NodeFacts | None) -> bool:
    return node is not None and keeps_off(node)


def _has_devices(node: NodeFacts | None) -> bool:
    return node is not None and any(
        amount > 0 and is_device(name) for name, amount in node.allocatable
    )


def _with(trait: Mask | None, row: int, value: bool) -> Mask | None:
    if trait is None or trait[row] == value:
        return trait
    changed = trait.copy()
    changed[row] = value
    return changed


class NodeTraits:
    """The traits of a table of nodes, by row."""

    def __init__(self) -> None:
        self._parts: dict[str, NDArray[np.intp]] = {}
        self._has_devices: Mask | None = None
        self._usable: Mask | None = None
        self._tainted: Mask | None = None
        self._models: DeviceModels | None = None
        self._models_known = False

    def forget(self) -> None:
        """Work everything out anew: there are more rows."""
        self._parts.clear()
        self._usable = self._tainted = self._has_devices = None
        self._models_known = False

    def changed(self, row: int, before: NodeFacts | None, after: NodeFacts | None) -> None:
        """Take over what a change of one row's node means.

        Whoever has a trait's array keeps it as it was.
        """
        self._usable = _with(self._usable, row, _is_usable(after))
        self._tainted = _with(self._tainted, row, _is_tainted(after))
        if before is None or after is None or before.labels != after.labels:
            self._parts.clear()
            self._models_known = False
        if before is None or after is None or before.allocatable != after.allocatable:
            self._has_devices = _with(self._has_devices, row, _has_devices(after))
            self._models_known = False

    def parts(self, label: str, rows: Mapping[NodeName, int], facts: Facts) -> NDArray[np.intp]:
        """Number each row by the value of its node's label; -1 without one."""
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

    def usable(self, facts: Facts) -> Mask:
        """Say of each row whether its node takes pods at all: it is ready and not cordoned."""
        if self._usable is None:
            self._usable = np.array([_is_usable(node) for node in facts], dtype=bool)
        return self._usable

    def tainted(self, facts: Facts) -> Mask:
        """Say of each row whether its node keeps off pods that do not tolerate something."""
        if self._tainted is None:
            self._tainted = np.array([_is_tainted(node) for node in facts], dtype=bool)
        return self._tainted

    def has_devices(self, facts: Facts) -> Mask:
        """Say of each row whether the node has any extended resource."""
        if self._has_devices is None:
            self._has_devices = np.array([_has_devices(node) for node in facts], dtype=bool)
        return self._has_devices

    def models(self, facts: Facts) -> DeviceModels | None:
        """Return the models of the nodes' devices; None: all are of one."""
        if not self._models_known:
            self._models = models_of(facts, self.has_devices(facts))
            self._models_known = True
        return self._models
