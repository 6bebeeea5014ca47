"""Stranded devices: free devices that the requests which a cluster sees cannot use.

Model: a typical request takes CPU, memory and devices on a node that accepts it. The free devices
of a node are stranded for a typical request that does not fit there. The expected number of
stranded devices is their sum over the typical requests, weighted by how often each of them is made.
The score of a node is how much a placement changes that number, as a part of the devices of the
largest node. So a pod takes the devices that few others can use, and leaves CPU and memory for
those that need them beside devices.

The idea is fragmentation gradient descent: Weng, Yang, Yu, Wang, Tang, Yang, Zhang, "Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC
2023. Here devices are not shared, and the typical requests are learned (``RequestMix``).

For each resource, sorted thresholds say which typical requests the free amount satisfies, as a set
of bits. The requests that fit on a node are the intersection of those sets, and a table has the
weight of all others. The cost of a node thus does not depend on the number of typical requests.
Weights are integers, so sums are exact: one node and an array of nodes get equal scores.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.scores import Amounts, Scores, is_device
from gangline.scheduler.types import PlacementConstraints, PodShape, Request, TolerationInfo

MAX_TYPICAL = 32
"""Typical requests that are compared with nodes: the most frequent ones."""
WEIGHT_UNITS = 4096
"""The sum of the weights of all typical requests, up to rounding."""
HALF_LIFE_PODS = 2048
"""A pod counts half when so many newer pods with devices have been seen."""
DEFAULT_PODS = 16
"""Pods that the default requests count as, so that the first real pods do not decide alone."""
MAX_PODS_BETWEEN_CHECKS = 512
MIN_CHANGE = 0.05
"""Part of the weight that must have moved before other typical requests are compared with nodes:
then all cached scores are computed again.
"""
MAX_BLOCK = 16
"""Pods of a gang that are placed together."""
_CHUNK_BITS = 11
"""Bits that index one table: three tables have the bits of all typical requests."""
_CHUNK_MASK = np.uint32((1 << _CHUNK_BITS) - 1)
MAX_ARRIVED = 10_000
"""Times of creation that are collected between cycles: without pending pods there are none."""
MAX_LEARNED = 512
"""Different requests whose frequency is known; where there are more, rare ones are forgotten."""
_TOLERATES_ALL = PlacementConstraints(tolerations=(TolerationInfo(operator="Exists"),))
Bits = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TypicalRequest:
    """CPU, memory and devices of a pod, and which nodes accept it."""

    needs: Request
    constraints: PlacementConstraints


Mix = Mapping[TypicalRequest, int]
"""Typical requests with their weights."""


def typical_request(shape: PodShape) -> TypicalRequest | None:
    """Return what is typical of a pod; None: it requests no device."""
    needs = tuple((name, amount) for name, amount in shape.request if amount > 0 and _counts(name))
    if not any(is_device(name) for name, _ in needs):
        return None
    # Rules about other pods and about volumes are left out: they concern single gangs.
    own = shape.constraints
    return TypicalRequest(
        needs, PlacementConstraints(own.selector, own.required, tolerations=own.tolerations)
    )


def _counts(resource: str) -> bool:
    return resource in {"cpu", "memory"} or is_device(resource)


def default_requests(columns: Mapping[str, int], allocatable: Amounts) -> list[TypicalRequest]:
    """Return what is expected before pods are seen: 1, 2, 4 and 8 devices of each kind that nodes
    have. What they need of CPU and memory is not known.
    """
    largest = {
        resource: int(allocatable[column].max(initial=0))
        for resource, column in sorted(columns.items())
        if is_device(resource)
    }
    return [
        TypicalRequest(((resource, count),), _TOLERATES_ALL)
        for resource, most in largest.items()
        for count in (1, 2, 4, 8)
        if count <= most
    ]


class RequestMix:
    """Learns how often each typical request is made, from the pods as they are first seen.

    The weight of a pod halves with every ``HALF_LIFE_PODS`` newer ones. Pods that are seen between
    two cycles count in the order of their creation, and equally if that is the same, so that the
    order of their arrival does not matter.
    """

    def __init__(self) -> None:
        self.typical: Mix = {}
        self._arrived: dict[datetime, Counter[PodShape]] = {}
        self._weights: dict[TypicalRequest, float] = {}
        self._newest = 1.0
        """The weight of a pod that is seen now."""
        self._seen = 0
        self._next_check = 1
        self._defaults: Sequence[TypicalRequest] = ()

    def observe(self, shape: PodShape, created: datetime) -> None:
        """Count a pod that was not seen before."""
        shapes = self._arrived.get(created)
        if shapes is None:
            if len(self._arrived) >= MAX_ARRIVED:
                self._count_arrived()
            shapes = self._arrived[created] = Counter()
        shapes[shape] += 1

    @property
    def has_arrivals(self) -> bool:
        return bool(self._arrived)

    def copy(self) -> "RequestMix":
        copied = RequestMix()
        copied.typical, copied._weights = self.typical, dict(self._weights)
        copied._arrived = {created: Counter(pods) for created, pods in self._arrived.items()}
        copied._newest, copied._seen = self._newest, self._seen
        copied._next_check, copied._defaults = self._next_check, self._defaults
        return copied

    def update(self, defaults: Sequence[TypicalRequest]) -> bool:
        """Count the pods that have arrived; return whether ``typical`` has changed by much."""
        self._count_arrived()
        if self._seen < self._next_check and defaults == self._defaults:
            return False
        self._defaults = defaults
        # Every doubling at first, as single pods change much then.
        self._next_check = self._seen + min(max(self._seen, 1), MAX_PODS_BETWEEN_CHECKS)
        latest = self._normalized()
        moved = sum(
            abs(latest.get(request, 0) - self.typical.get(request, 0))
            for request in latest.keys() | self.typical.keys()
        )
        if moved <= 2 * MIN_CHANGE * WEIGHT_UNITS:
            return False
        self.typical = latest
        return True

    def _count_arrived(self) -> None:
        for _, shapes in sorted(self._arrived.items()):
            self._count(shapes)
        self._arrived.clear()

    def _count(self, shapes: Mapping[PodShape, int]) -> None:
        counts: Counter[TypicalRequest] = Counter()
        for shape, count in shapes.items():
            if (request := typical_request(shape)) is not None:
                counts[request] += count
        if not counts:
            return
        total = counts.total()
        self._seen += total
        self._newest *= 2.0 ** (min(total, 64 * HALF_LIFE_PODS) / HALF_LIFE_PODS)
        for request, count in counts.items():
            self._weights[request] = self._weights.get(request, 0.0) + count * self._newest
        if self._newest > 2.0**64:
            self._weights = {r: weight / self._newest for r, weight in self._weights.items()}
            self._newest = 1.0
        if len(self._weights) > 2 * MAX_LEARNED:
            self._weights = dict(sorted(self._weights.items(), key=_rank)[:MAX_LEARNED])

    def _normalized(self) -> Mix:
        weights = {request: weight / self._newest for request, weight in self._weights.items()}
        for request in self._defaults:
            weights[request] = weights.get(request, 0.0) + DEFAULT_PODS / len(self._defaults)
        frequent = sorted(weights.items(), key=_rank)[:MAX_TYPICAL]
        total = sum(weight for _, weight in frequent)
        return {
            request: units
            for request, weight in frequent
            if (units := round(WEIGHT_UNITS * weight / total))
        }


def _rank(item: tuple[TypicalRequest, float]) -> tuple[float, str]:
    return -item[1], repr(item[0])


@dataclass(frozen=True, slots=True)
class _Level:
    """Which typical requests a free amount of one resource satisfies."""

    column: int
    thresholds: list[int]
    satisfied: list[int]
    """The satisfied requests, as bits, below the first threshold, from it on, and so on."""
    threshold_array: Amounts
    satisfied_array: Bits


@dataclass(frozen=True, slots=True)
class _DeviceColumn:
    """The weight of the typical requests that want a device and do not fit."""

    column: int
    largest: int
    """The devices of the largest node."""
    scale: float
    weights: list[int]
    """The weight of each request, by its bit."""
    tables: list[Amounts]
    """The weight of the missing bits, for each chunk of the bits."""
    unsatisfied: dict[int, int]
    """The weight of the missing bits, as far as it has been asked for."""

    def weight_without(self, bits: int) -> int:
        weight = self.unsatisfied.get(bits)
        if weight is None:
            weight = self.unsatisfied[bits] = sum(
                weight for index, weight in enumerate(self.weights) if not bits >> index & 1
            )
        return weight


class StrandedDevices:
    """Counts the stranded devices of nodes."""

    def __init__(self, mix: Mix, columns: Mapping[str, int], allocatable: Amounts) -> None:
        usable = [
            (dict(request.needs), request.constraints, weight)
            for request, weight in mix.items()
            if all(name in columns for name, _ in request.needs)
        ]
        self.constraints = [constraints for _, constraints, _ in usable]
        self._accepted: Bits = np.zeros(0, dtype=np.uint32)
        self.accepted_by_row: list[int] = []
        """The typical requests that each row accepts, as bits."""
        names = sorted({name for needs, _, _ in usable for name in needs})
        self._levels = [
            _level(columns[n], [needs.get(n, 0) for needs, _, _ in usable]) for n in names
        ]
        self._devices: list[_DeviceColumn] = []
        self.columns = frozenset(columns[name] for name in names)
        """Columns on whose free amounts the result depends."""
        for name in filter(is_device, names):
            weights = [
                weight // sum(map(is_device, needs)) if name in needs else 0
                for needs, _, weight in usable
            ]
            largest = max(1, int(allocatable[columns[name]].max(initial=0)))
            tables = _chunk_tables(weights)
            scale = 1.0 / (WEIGHT_UNITS * largest)
            self._devices.append(_DeviceColumn(columns[name], largest, scale, weights, tables, {}))
        self._counted = usable, [device.scale for device in self._devices]

    def counts_like(self, other: "StrandedDevices") -> bool:
        """Return whether another one counts the same on nodes that accept the same requests."""
        return self._counted == other._counted

    def set_accepted(self, accepted: Iterable[NDArray[np.bool_]], rows: int) -> None:
        """Set which rows accept each of ``constraints``."""
        bits: Bits = np.zeros(rows, dtype=np.uint32)
        for index, mask in enumerate(accepted):
            bits |= mask.astype(np.uint32) << np.uint32(index)
        self._accepted, self.accepted_by_row = bits, bits.tolist()

    def in_rows(
        self, free: Amounts, left: Mapping[int, Amounts], rows: NDArray[np.intp] | None
    ) -> Scores:
        """Return how many more devices are stranded in each of the rows after a placement, as a
        part of the devices of the largest node.

        Args:
            free: free amounts of these rows.
            left: the amounts that the placement leaves, by column.
            rows: None: all rows.
        """
        count = free.shape[1]
        # Both states are compared in one array: a step costs more than its elements.
        bits = np.tile(self._accepted if rows is None else self._accepted[rows], 2)
        amounts: Amounts = np.empty(2 * count, dtype=np.int64)
        change: Scores = np.zeros(count)
        for level in self._levels:
            amounts[:count] = now = free[level.column]
            amounts[count:] = left.get(level.column, now)
            bits &= level.satisfied_array[level.threshold_array.searchsorted(amounts, "right")]
        for device in self._devices:
            amounts[:count] = now = free[device.column]
            amounts[count:] = left.get(device.column, now)
            stranded = _weights_without(device, bits) * np.maximum(amounts, 0)
            change += device.scale * (stranded[count:] - stranded[:count])
        return change

    def in_row(self, free: Amounts, row: int, demand: Mapping[int, int], pods: int) -> float:
        """Return what ``in_rows`` returns for one row.

        Args:
            demand: the requested amounts of a pod, by column.
        """
        before = after = self.accepted_by_row[row]
        for level in self._levels:
            amount = free.item(level.column, row)
            before &= level.satisfied[bisect_right(level.thresholds, amount)]
            amount -= demand.get(level.column, 0) * pods
            after &= level.satisfied[bisect_right(level.thresholds, amount)]
        change = 0.0
        for device in self._devices:
            now = free.item(device.column, row)
            then = now - demand.get(device.column, 0) * pods
            change += device.scale * (
                device.weight_without(after) * max(then, 0)
                - device.weight_without(before) * max(now, 0)
            )
        return change

    def block_size(self, demand: Mapping[int, int], pods: int) -> int:
        """Return how many of these pods are placed together: a power of two, as nodes are scored
        for each size, and not more than the devices of the largest node allow.
        """
        most = min(
            (
                device.largest // demand[device.column]
                for device in self._devices
                if device.column in demand
            ),
            default=MAX_BLOCK,
        )
        return max(1, min(1 << pods.bit_length() - 1, most, MAX_BLOCK))


def _level(column: int, needs: Sequence[int]) -> _Level:
    thresholds = sorted({amount for amount in needs if amount > 0})
    satisfied = [
        sum(1 << index for index, amount in enumerate(needs) if amount <= bound)
        for bound in (0, *thresholds)
    ]
    return _Level(
        column,
        thresholds,
        satisfied,
        np.array(thresholds, dtype=np.int64),
        np.array(satisfied, dtype=np.uint32),
    )


def _chunk_tables(weights: Sequence[int]) -> list[Amounts]:
    tables: list[Amounts] = []
    for first in range(0, len(weights), _CHUNK_BITS):
        table: Amounts = np.zeros(1, dtype=np.int64)
        for weight in weights[first : first + _CHUNK_BITS]:
            table = np.concatenate((table + weight, table))
        tables.append(table)
    return tables


def _weights_without(device: _DeviceColumn, bits: Bits) -> Amounts:
    first, *others = device.tables
    # The bits of a short table need no mask: there are no higher ones.
    total: Amounts = first[bits & _CHUNK_MASK if others else bits]
    for index, table in enumerate(others, 1):
        total += table[bits >> np.uint32(index * _CHUNK_BITS) & _CHUNK_MASK]
    return total
