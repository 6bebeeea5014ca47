"""What is derived from nodes and kept until they change: masks, device models, requests as columns,
and scores.

Each mask has an element for each row; elements of empty rows are False. Scores say on which rows a
shape fits, and which of them are best. They are kept for each shape: a changed node, or a changed
pod on it, only costs its own row. Scratch allocations start from copies.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.filters import has_blocking_taint
from gangline.scheduler.plugins.scores import (
    Amounts,
    Scores,
    ScoreWeights,
    balance_score,
    is_device,
)
from gangline.scheduler.plugins.stranded_devices import StrandedDevices
from gangline.scheduler.types import NodeInfo, NodeName, PodShape, Request

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
    present = frozenset(of[row] for row in np.flatnonzero(has_devices).tolist())
    if len(present) < 2:
        return None
    named = np.array(of)
    return DeviceModels(of, present, {model: (named == model) | ~has_devices for model in set(of)})


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
        domains = self._parts.get(label)
        if domains is None:
            values: dict[str, int] = {}
            domains = np.full(len(facts), -1, dtype=np.intp)
            for row in rows.values():
                node = facts[row]
                value = dict(node.labels).get(label) if node is not None else None
                if value is not None:
                    domains[row] = values.setdefault(value, len(values))
            self._parts[label] = domains
        return domains

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
    amounts: Mapping[int, int] = field(init=False, compare=False)
    """Amount of each requested resource, by column."""

    def __post_init__(self) -> None:
        amounts = {column: amount for column, amount, _ in self.terms}
        object.__setattr__(self, "amounts", amounts)


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


Rows = NDArray[np.intp] | None
"""None: all rows, without indexing."""
MAX_CACHED_SHAPES = 512
MAX_CHANGE_LOG = 100_000
MAX_CACHED_QUALITIES = 4096
PACKING_BESIDE_STRANDING = 0.07
"""Factor of packing and balance for pods with devices, if stranded devices are scored: packing only
decides between nodes where a pod strands about as many. Preferences of pods count in full. Pods
without devices have the reverse: packing counts in full, and stranding at most its weight.
"""
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class QualityCache:
    """Packing and stranding scores of blocks of one request, by the kind and the free amounts of a
    node.
    """

    kinds: Mapping[int, int]
    """The kind of each row: equal ones accept the same requests and have equal allocatable amounts.
    """
    columns: Sequence[int]
    """The columns on which the scores depend."""
    scores: dict[tuple[int, ...], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScoringInputs:
    """What scores depend on besides the request."""

    free: Amounts
    allocatable: Amounts
    has_devices: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    preference: NDArray[np.float64] | None
    weights: ScoreWeights
    prefer_no_schedule: NDArray[np.int32] | None = None
    """Number of untolerated PreferNoSchedule taints by row; None: there are none."""
    extra_score: NDArray[np.float64] | None = None
    """Added to each row's score, for plans that consider more than packing."""
    images: NDArray[np.float64] | None = None
    """Image locality by row (see ``image_locality``); None: it has no weight."""
    stranding: StrandedDevices | None = None
    """None: there are no devices, or stranded ones have no weight."""
    qualities: QualityCache | None = None
    """None: scores are computed each time, which takes as long without ``stranding``."""
    block: int = 1
    """Pods that are placed together, as far as a node holds them: what they strand is shared."""


def score_rows(
    inputs: ScoringInputs, demand: ResourceDemand, rows: Rows, extra_weight: float = 0.0
) -> Scores:
    """Score rows by packing: the fullest after the placement is best; minus infinity where it does
    not fit.
    """
    fits = inputs.accepted.copy() if rows is None else inputs.accepted[rows]
    # All resources of the rows are gathered in one step: one per resource takes longer.
    free = inputs.free if rows is None else inputs.free[:, rows]
    allocatable = inputs.allocatable if rows is None else inputs.allocatable[:, rows]
    score: Scores = np.zeros(len(fits))
    weights = 0.0
    for column, amount, weight in demand.terms:
        left = free[column] - amount
        fits &= left >= 0
        if weight:
            score += weight * (1.0 - left / np.maximum(allocatable[column], 1))
            weights += weight
    score *= inputs.weights.packing / max(weights, 1e-9)
    if demand.balanced:
        score += inputs.weights.balance * _balance(demand, free, allocatable)
    if inputs.stranding is not None:
        if demand.wants_device:
            score *= PACKING_BESIDE_STRANDING
        score -= _stranding(inputs, inputs.stranding, demand, free, rows)
    if not demand.wants_device:
        score -= inputs.weights.spare_devices * _at_rows(inputs.has_devices, rows)
    if inputs.preference is not None:
        score += inputs.weights.affinity * _at_rows(inputs.preference, rows)
    if inputs.prefer_no_schedule is not None:
        score -= inputs.weights.discouraged * _at_rows(inputs.prefer_no_schedule, rows)
    if inputs.images is not None:
        score += inputs.weights.images * _at_rows(inputs.images, rows)
    if inputs.extra_score is not None:
        score += extra_weight * _at_rows(inputs.extra_score, rows)
    score[~fits] = -np.inf
    return score


def _stranding(
    inputs: ScoringInputs,
    devices: StrandedDevices,
    demand: ResourceDemand,
    free: Amounts,
    rows: Rows,
) -> Scores:
    """Return the weighted number of devices that each pod of a block strands on each row."""
    pods = np.full(free.shape[1], inputs.block)
    if inputs.block > 1:
        for column, amount, _ in demand.terms:
            np.minimum(pods, free[column] // amount, out=pods)
        np.maximum(pods, 1, out=pods)
    left = {column: free[column] - amount * pods for column, amount, _ in demand.terms}
    stranded: Scores = devices.in_rows(free, left, rows) / pods
    if not demand.wants_device:
        stranded = np.minimum(stranded / PACKING_BESIDE_STRANDING, 1.0)
    return inputs.weights.stranded_devices * stranded


def score_row(
    inputs: ScoringInputs, demand: ResourceDemand, row: int, extra_weight: float = 0.0
) -> float:
    """Return exactly what ``score_rows`` returns for one row, in a tenth of the time.

    An array operation costs the same for one row as for hundreds, and packing pod after pod asks
    for one row at a time.
    """
    if demand.balanced:
        rows = np.array([row], dtype=np.intp)
        return float(score_rows(inputs, demand, rows, extra_weight)[0])
    if not inputs.accepted[row]:
        return -np.inf
    score = (
        _quality(inputs, demand, row)
        if inputs.qualities is None
        else _cached_quality(inputs, inputs.qualities, demand, row)
    )
    if score == -np.inf:
        return score
    if not demand.wants_device:
        score -= inputs.weights.spare_devices * inputs.has_devices.item(row)
    if inputs.preference is not None:
        score += inputs.weights.affinity * inputs.preference.item(row)
    if inputs.prefer_no_schedule is not None:
        score -= inputs.weights.discouraged * inputs.prefer_no_schedule.item(row)
    if inputs.images is not None:
        score += inputs.weights.images * inputs.images.item(row)
    if inputs.extra_score is not None:
        score += extra_weight * inputs.extra_score.item(row)
    return score


def _quality(inputs: ScoringInputs, demand: ResourceDemand, row: int) -> float:
    """Return the score of packing and stranding; minus infinity if the demand does not fit."""
    free, allocatable = inputs.free, inputs.allocatable
    score = weights = 0.0
    for column, amount, weight in demand.terms:
        left = free.item(column, row) - amount
        if left < 0:
            return -np.inf
        if weight:
            # Floats, as in arrays: Python rounds the quotient of integers differently.
            score += weight * (1.0 - float(left) / float(max(allocatable.item(column, row), 1)))
            weights += weight
    score *= inputs.weights.packing / max(weights, 1e-9)
    if inputs.stranding is not None:
        pods = inputs.block
        if pods > 1:
            for column, amount, _ in demand.terms:
                pods = min(pods, free.item(column, row) // amount)
        stranded = inputs.stranding.in_row(free, row, demand.amounts, pods) / pods
        if demand.wants_device:
            score *= PACKING_BESIDE_STRANDING
        else:
            stranded = min(stranded / PACKING_BESIDE_STRANDING, 1.0)
        score -= inputs.weights.stranded_devices * stranded
    return score


def _cached_quality(
    inputs: ScoringInputs, qualities: "QualityCache", demand: ResourceDemand, row: int
) -> float:
    """Return what ``_quality`` returns: most nodes of a cluster are of a few kinds."""
    item = inputs.free.item
    key = (qualities.kinds[row], *[item(column, row) for column in qualities.columns])
    score = qualities.scores.get(key)
    if score is None:
        if len(qualities.scores) >= MAX_CACHED_QUALITIES:
            qualities.scores.clear()
        score = qualities.scores[key] = _quality(inputs, demand, row)
    return score


def _balance(demand: ResourceDemand, free: Amounts, allocatable: Amounts) -> Scores:
    columns = [column for column, _ in demand.balanced]
    amounts = np.array([amount for _, amount in demand.balanced], dtype=np.int64)
    return balance_score(free[columns] - amounts[:, None], allocatable[columns])


def _at_rows(values: NDArray[T], rows: Rows) -> NDArray[T]:
    return values if rows is None else values[rows]


class _NodeKinds(dict[int, int]):
    """The kind of each row, determined when it is asked for: few rows change in a cycle."""

    def __init__(self, accepted: Sequence[int], allocatable: Amounts) -> None:
        super().__init__()
        self._accepted, self._allocatable = accepted, allocatable
        self._numbers: dict[tuple[int, ...], int] = {}

    def __missing__(self, row: int) -> int:
        key = self._accepted[row], *self._allocatable[:, row].tolist()
        number = self[row] = self._numbers.setdefault(key, len(self._numbers))
        return number


class StrandingCache:
    """What counts stranded devices, while the nodes and the typical requests stay the same."""

    def __init__(
        self, devices: StrandedDevices, allocatable: Amounts, accepted: Iterable[Mask]
    ) -> None:
        self.devices = devices
        devices.set_accepted(accepted, allocatable.shape[1])
        self._kinds = _NodeKinds(devices.accepted_by_row, allocatable)
        self._qualities: dict[tuple[Request, int], QualityCache] = {}

    def qualities(self, request: Request, demand: ResourceDemand, block: int) -> QualityCache:
        """Return the cached scores of blocks of a request."""
        key = request, block
        cached = self._qualities.get(key)
        if cached is None:
            if len(self._qualities) >= MAX_CACHED_SHAPES:
                self._qualities.pop(next(iter(self._qualities)))
            columns = sorted(self.devices.columns | demand.amounts.keys())
            cached = self._qualities[key] = QualityCache(self._kinds, columns)
        return cached


class ScoreCache:
    """Scores of the cached cluster, by shape."""

    def __init__(self) -> None:
        self._scores: dict[tuple[PodShape, int], tuple[Scores, int]] = {}
        self._touched: list[int] = []

    def mark_changed(self, row: int) -> None:
        self._touched.append(row)
        if len(self._touched) > MAX_CHANGE_LOG:
            self.clear()

    def clear(self) -> None:
        self._scores.clear()
        self._touched.clear()

    def drop_images(self, images: Set[str]) -> None:
        for key in [key for key in self._scores if not images.isdisjoint(key[0].images)]:
            del self._scores[key]

    def get(self, shape: PodShape, block: int, compute: Callable[[Rows], Scores]) -> Scores:
        """Return the current scores of blocks of a shape; the caller copies before writing."""
        key = shape, block
        cached = self._scores.get(key)
        if cached is None:
            if len(self._scores) >= MAX_CACHED_SHAPES:
                self._scores.pop(next(iter(self._scores)))
            score = compute(None)
        else:
            score, seen = cached
            if seen < len(self._touched):
                rows = np.array(sorted(set(self._touched[seen:])), dtype=np.intp)
                score[rows] = compute(rows)
        self._scores[key] = (score, len(self._touched))
        return score
