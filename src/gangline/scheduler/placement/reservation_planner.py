"""Planning where a gang that stays pending could start later.

A plan is a placement on the cluster without the pods that end some time. The cycle reserves the
nodes of the plan for the first pending gang of a queue.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.placement.gang import place_minimum
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.placement.volume_matching import VolumeMatching
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types import PodInfo, Reservation

MAX_CACHED_FEASIBILITY = 4096


class EvictableLastingPods(Protocol):
    """Which pods that may never end a gang may evict."""

    def priority_bound(self, gang: PendingGang) -> float:
        """Return the priority below which a gang may evict them; -inf: none."""

    def below(self, bound: float) -> Iterable[PodInfo]:
        """Return the pods that gangs with this bound may evict."""


class ReservationPlanner:
    """Plans where gangs could start once the pods that end some time have ended.

    Pods that may never end (``PodInfo.may_run_forever``) stay, unless the gang may evict them, and
    so do the gang's own members. Nodes with the most free resources now come first: there a gang
    can start soonest.
    """

    def __init__(self, nodes: NodeTable, evictable: EvictableLastingPods) -> None:
        self._nodes, self._evictable = nodes, evictable
        self._volumes = VolumeMatching(nodes)
        self._free_fraction: NDArray[np.float64] | None = None
        self._empty_clusters: dict[float, ScratchAllocation] = {}
        """The allocation without pods that end some time, by priority bound, shared by all pending
        gangs that have no running members.
        """

    def plan(
        self,
        gang: PendingGang,
        reservation: Reservation | None = None,
        beside: Sequence[Placement] = (),
    ) -> list[Placement] | None:
        """Return where a gang could start; None: nowhere.

        The plan keeps the nodes of an earlier reservation where that is still possible. A plan that
        moved whenever another node looks better might never come true.

        Args:
            beside: plans of other gangs, which it leaves untouched.
        """
        if any(map(self._volumes.is_in_use, gang.pending)):
            # When the present user of a claim ends is not known: the nodes would stay idle.
            return None
        return self._plan(gang, reservation, beside)

    def _plan(
        self,
        gang: PendingGang,
        reservation: Reservation | None = None,
        beside: Sequence[Placement] = (),
    ) -> list[Placement] | None:
        drained = self._scratch_for(gang)
        if reservation is not None and reservation.nodes:
            gang = replace(gang, nominated_nodes=reservation.nodes)
        drained.reserve(beside)
        unplaced = place_minimum(drained, gang)
        plan = drained.since(0)
        drained.rollback(0)
        drained.release(beside)
        return None if unplaced else plan

    def is_possible(self, gang: PendingGang) -> bool:
        """Return whether a gang could start at all once running gangs have ended."""
        nodes = self._nodes
        if gang.running or gang.has_inter_pod_rules or nodes.anti_affinity_owners:
            return self._plan(gang) is not None
        key = (gang.equivalence_key, self._evictable.priority_bound(gang))
        is_possible = nodes.feasibility.get(key)
        if is_possible is None:
            if len(nodes.feasibility) >= MAX_CACHED_FEASIBILITY:
                nodes.feasibility.clear()
            is_possible = nodes.feasibility[key] = self._plan(gang) is not None
        return is_possible

    def evictable_pods(self, gang: PendingGang) -> Iterable[PodInfo]:
        """Return the pods that may never end and that the gang may evict."""
        return self._evictable.below(self._evictable.priority_bound(gang))

    def _scratch_for(self, gang: PendingGang) -> ScratchAllocation:
        bound = self._evictable.priority_bound(gang)
        if gang.running:
            return self._new_scratch(gang.running, self._evictable.below(bound))
        if bound not in self._empty_clusters:
            self._empty_clusters[bound] = self._new_scratch((), self._evictable.below(bound))
        return self._empty_clusters[bound]

    def _new_scratch(
        self, running: Iterable[PodInfo], evictable: Iterable[PodInfo]
    ) -> ScratchAllocation:
        nodes = self._nodes
        if self._free_fraction is None:
            now_free = (nodes.allocatable - nodes.used) / np.maximum(nodes.allocatable, 1)
            self._free_fraction = now_free.mean(axis=0)
        lasting = nodes.lasting.copy()
        for pods, sign in ((running, 1), (evictable, -1)):
            for pod in pods:
                row = nodes.rows.get(pod.node) if pod.node is not None else None
                if row is not None:
                    for column, amount, _ in nodes.demand(pod.shape.request).terms:
                        lasting[column, row] += sign * amount
        drained = ScratchAllocation(
            nodes, nodes.allocatable - lasting, extra_score=self._free_fraction
        )
        ending = {pod.key for pod in evictable}
        lasting_pods = nodes.lasting_pods
        drained.end_all_but(
            lambda: (*(lasting_pods[key] for key in lasting_pods.keys() - ending), *running)
        )
        return drained
