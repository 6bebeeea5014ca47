"""Node scores: which of the accepted nodes is best. Gangs are packed, and devices are not wasted.

The total is a weighted sum; each score lies between 0 and 1. Packing keeps unused nodes free for
the next gang. Pods without devices avoid nodes with devices, so that no device is unusable for lack
of CPU. The balance score is Kubernetes' ``NodeResourcesBalancedAllocation``: the deviation between
the used fractions of CPU, memory and the devices that the pod requests.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.filters import term_matches
from gangline.scheduler.types.types import NodeInfo, PlacementConstraints, Request

Amounts = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """Weights of the scores."""

    packing: float = 1.0
    """Prefers full nodes; a negative weight prefers empty nodes, which spreads pods."""
    cpu: float = 1.0
    memory: float = 1.0
    device: float = 5.0
    """Devices are expensive: their usage outweighs that of CPU and memory."""
    resources: tuple[tuple[str, float], ...] = ()
    """Other weights of single resources."""
    spare_devices: float = 2.0
    """Against nodes whose devices the pod does not need."""
    same_device_model: float = 1.0
    """Above 0: gangs stay on nodes with one device model if they fit there."""
    fewer_nodes: float = 0.0
    """Against each node that a gang's pods with devices use; a node that was unused before costs 1.
    """
    fragments: float = 0.0
    """Against leaving devices over where the usual pods cannot use them."""
    affinity: float = 2.0
    """Preferred node affinity."""
    pod_affinity: float = 2.0
    """Preferred inter-pod affinity."""
    spreading: float = 2.0
    """Topology spread with ``ScheduleAnyway``."""
    discouraged: float = 3.0
    """Against each untolerated ``PreferNoSchedule`` taint."""
    balance: float = 0.0
    """Balanced use of CPU, memory and devices of a node."""
    images: float = 0.0
    """Nodes that have the pod's images. With 0 images are neither decoded nor stored."""
    seed: int = 0
    """Order of equally good nodes; 0: by name."""

    @property
    def scores_each_pod(self) -> bool:
        """True if a node may get worse by being used: then each pod is scored by itself.

        Else the best node stays the best, and takes pods of one shape in one step.
        """
        return self.packing < 0 or self.balance > 0

    @property
    def best_node_stays_best(self) -> bool:
        """True if the best node certainly stays the best while pods fit."""
        return not (self.scores_each_pod or self.fragments)

    def resource_weight(self, resource: str) -> float:
        """Return the packing weight of a resource; pod slots have none."""
        special = dict(self.resources).get(resource)
        if special is not None:
            return special
        match resource:
            case "cpu":
                return self.cpu
            case "memory":
                return self.memory
            case _:
                return self.device if is_device(resource) else 0.0


def is_device(resource: str) -> bool:
    """Return whether a resource is an extended one (``nvidia.com/gpu``): scarce and indivisible."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


def preference_score(constraints: PlacementConstraints, node: NodeInfo) -> float:
    """Return how well a node matches the pod's preferred affinity, between 0 and 1."""
    total = sum(weight for weight, _ in constraints.preferred)
    if not total:
        return 0.0
    labels = dict(node.labels)
    met = sum(w for w, term in constraints.preferred if term_matches(term, labels, node.name))
    return met / total


def balance_score(left: Amounts, allocatable: Amounts) -> Scores:
    """Return the balance of each node (column) over its resources (rows): 1 if fractions are equal.

    Resources that a node does not have are left out.
    """
    there: NDArray[np.bool_] = allocatable > 0
    used = np.where(there, np.clip(1.0 - left / np.maximum(allocatable, 1), 0.0, 1.0), 0.0)
    count = np.maximum(there.sum(axis=0), 1)
    apart = np.where(there, used - used.sum(axis=0) / count, 0.0)
    even: Scores = 1.0 - np.sqrt((apart**2).sum(axis=0) / count)
    return even


RAREST = 1 / 16
"""Kinds of pods that are fewer than this part of those that ask for devices do not count."""


@dataclass(frozen=True, slots=True)
class CommonPods:
    """The usual pods that ask for devices."""

    columns: NDArray[np.intp]
    """Of all resources that any of them asks for."""
    amounts: Amounts
    """What each kind (column) asks for of each resource (row)."""
    shares: NDArray[np.float64]
    """How common each kind is; together one."""
    devices: NDArray[np.int64]
    """How many devices each kind asks for."""
    device_columns: NDArray[np.intp]

    def fragments(self, free: Amounts) -> Scores:
        """Return how many free devices are of no use to the usual pod, for each column."""
        # A kind is bounded by what it asks for; a little of nothing bounds nobody.
        left = np.maximum(free[self.columns], 0)[:, None, :]
        wanted = self.amounts[:, :, None]
        fitting = np.where(wanted > 0, left // np.maximum(wanted, 1), _ENDLESS).min(axis=0)
        there = np.maximum(free[self.device_columns], 0).sum(axis=0)
        unused = there - fitting * self.devices[:, None]
        found: Scores = self.shares @ unused
        return found


_ENDLESS = np.int64(2**40)


class Popularity:
    """Counts pods by what they ask for, to know the usual ones.

    Shares are rounded to powers of two, so that they stay the same while pods come and go: whoever
    keeps scores for them need not work all of them out anew with each pod.
    """

    def __init__(self) -> None:
        self._counts: Counter[Request] = Counter()
        self._known: Mapping[Request, float] = {}
        self._arrays: CommonPods | None = None
        self._stale = False

    def note(self, request: Request, sign: int) -> None:
        """Count a pod (``sign`` -1: no longer)."""
        kind = _kind(request)
        if not kind:
            return
        self._counts[kind] += sign
        if not self._counts[kind]:
            del self._counts[kind]
        self._stale = True

    def shares(self) -> Mapping[Request, float]:
        """Return the usual kinds, and about how common each is."""
        total = self._counts.total()
        return {
            kind: 2.0 ** round(math.log2(count / total))
            for kind, count in sorted(self._counts.items())
            if count >= total * RAREST
        }

    def common(
        self, columns: Mapping[str, int], ensure: Callable[[Request], None]
    ) -> tuple[CommonPods | None, bool]:
        """Return the usual pods, and whether they have changed since this was last asked.

        Args:
            columns: the column of each resource.
            ensure: makes columns for the resources of a request.
        """
        shares = self.shares() if self._stale else self._known
        changed = shares != self._known
        self._stale = False
        if changed:
            for kind in shares:
                ensure(kind)
            self._known, self._arrays = shares, common_pods(shares, columns)
        return self._arrays, changed


def common_pods(shares: Mapping[Request, float], columns: Mapping[str, int]) -> CommonPods | None:
    """Return the usual pods as arrays; None: none asks for devices."""
    if not shares:
        return None
    names = sorted({name for kind in shares for name, _ in kind})
    kinds = [dict(kind) for kind in shares]
    total = sum(shares.values())
    return CommonPods(
        columns=np.array([columns[name] for name in names], dtype=np.intp),
        amounts=np.array([[kind.get(name, 0) for kind in kinds] for name in names], dtype=np.int64),
        shares=np.array([share / total for share in shares.values()]),
        devices=np.array(
            [sum(amount for name, amount in kind.items() if is_device(name)) for kind in kinds],
            dtype=np.int64,
        ),
        device_columns=np.array([columns[n] for n in names if is_device(n)], dtype=np.intp),
    )


@lru_cache(maxsize=4096)
def _kind(request: Request) -> Request:
    """What makes a pod's kind: devices, and CPU and memory beside them; nothing without devices."""
    kind = tuple(
        (name, amount)
        for name, amount in request
        if amount > 0 and (is_device(name) or name in {"cpu", "memory"})
    )
    return kind if any(is_device(name) for name, _ in kind) else ()
