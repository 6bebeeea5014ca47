"""Backtracking search for a gang that packing could not place.

Packing goes through the pods once and never revises a placement. That is nearly always optimal, and
always for pods of one shape. A gang of several kinds of pods may still fit in another way. Where
few nodes accept any of them, those ways are tried within fixed bounds, so that a gang that fits
nowhere does not delay the cycle.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.types.types import PodInfo

MAX_PODS = 12
MAX_NODES = 16
"""Bound on nodes with free resources for any of the pods: with more, packing finds a way."""
MAX_STEPS = 300
"""Maximal number of placements that are tried."""
MAX_ROW_CHECKS = 20_000
"""Maximal number of tried placements times nodes, for pods with inter-pod rules: each of their
placements compares all nodes.
"""

PodKind = tuple[Hashable, ...]
"""Pods that are equivalent, also to the rules of other pods."""


def place_by_backtracking(
    scratch: ScratchAllocation, gang: PendingGang, pods: Sequence[PodInfo]
) -> bool:
    """Place all of these pods or none of them; return whether they are placed."""
    if not 2 <= len(pods) <= MAX_PODS or len(pods) > gang.needed:
        return False
    kinds: dict[PodKind, list[PodInfo]] = {}
    for pod in pods:
        kinds.setdefault((pod.shape, pod.labels), []).append(pod)
    related = any(scratch.has_inter_pod_rules(pod.shape) for pod in pods)
    if len(kinds) == 1 and not related:
        return False
    rows = {kind: scratch.rows_for(same_kind[0].shape) for kind, same_kind in kinds.items()}
    if not all(rows.values()) or len(set().union(*rows.values())) > MAX_NODES:
        return False
    if not _has_enough_in_total(scratch, pods, sorted(set().union(*rows.values()))):
        return False
    steps = min(MAX_STEPS, max(1, MAX_ROW_CHECKS // len(scratch.nodes))) if related else MAX_STEPS
    return _Backtracking(scratch, rows, related, steps).extend(kinds, {})


def _has_enough_in_total(
    scratch: ScratchAllocation, pods: Sequence[PodInfo], rows: Sequence[int]
) -> bool:
    asked: dict[int, int] = {}
    for pod in pods:
        for column, amount, _ in scratch.nodes.demand(pod.shape.request).terms:
            asked[column] = asked.get(column, 0) + amount
    free = np.maximum(scratch.free[:, rows], 0).sum(axis=1)
    return all(free[column] >= amount for column, amount in asked.items())


class _Backtracking:
    def __init__(
        self, scratch: ScratchAllocation, rows: dict[PodKind, list[int]], related: bool, steps: int
    ) -> None:
        self._scratch = scratch
        self._rows = rows
        self._related = related
        """True if the order of the pods matters."""
        self._steps = steps

    def extend(self, left: dict[PodKind, list[PodInfo]], first: dict[PodKind, int]) -> bool:
        """Place the remaining pods.

        Args:
            left: pods by kind.
            first: index of the node that took the last pod of each kind. They are equivalent,
                so the next one starts at this node.
        """
        if not left:
            return True
        for kind in left if self._related else list(left)[:1]:
            pod, *others = left[kind]
            rest = {key: others if key == kind else pods for key, pods in left.items()}
            if not others:
                del rest[kind]
            begin = 0 if self._related else first.get(kind, 0)
            for index in range(begin, len(self._rows[kind])):
                if not self._steps:
                    return False
                self._steps -= 1
                mark = self._scratch.mark()
                if self._scratch.place_on_row(pod, self._rows[kind][index]):
                    if self.extend(rest, {**first, kind: index}):
                        return True
                    self._scratch.rollback(mark)
        return False
