"""Backtracking search for a gang that packing could not place.

Packing goes through the pods once and never revises a placement. That is nearly always optimal, and
always for pods of one shape. A gang of several kinds of pods may still fit in another way. Where
few nodes accept any of them, those ways are tried within fixed bounds, so that a gang that fits
nowhere does not delay the cycle.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from gangline.scheduler.model import PodFacts
from gangline.scheduler.trial import Trial
from gangline.scheduler.units import Unit

MOST_PODS = 12
MOST_NODES = 16
"""Bound on nodes with free resources for any of the pods: with more, packing finds a way."""
STEPS = 300
"""Maximal number of placements that are tried."""
ROWS_SEEN = 20_000
"""Maximal number of tried placements times nodes, for pods with inter-pod rules: each of their
placements compares all nodes.
"""

Kind = tuple[Hashable, ...]
"""Pods that are equivalent, also to the rules of other pods."""


def place_by_search(trial: Trial, unit: Unit, pods: Sequence[PodFacts]) -> bool:
    """Place all of these pods or none of them; return whether they are placed."""
    if not 2 <= len(pods) <= MOST_PODS or len(pods) > unit.needed:
        return False
    kinds: dict[Kind, list[PodFacts]] = {}
    for pod in pods:
        kinds.setdefault((pod.shape, pod.labels), []).append(pod)
    related = any(trial.relates(pod.shape) for pod in pods)
    if len(kinds) == 1 and not related:
        return False
    rows = {kind: trial.rows_for(alike[0].shape) for kind, alike in kinds.items()}
    if not all(rows.values()) or len(set().union(*rows.values())) > MOST_NODES:
        return False
    if not _enough_in_sum(trial, pods, sorted(set().union(*rows.values()))):
        return False
    steps = min(STEPS, max(1, ROWS_SEEN // len(trial.nodes))) if related else STEPS
    return _Search(trial, rows, related, steps).extend(kinds, {})


def _enough_in_sum(trial: Trial, pods: Sequence[PodFacts], rows: Sequence[int]) -> bool:
    asked: dict[int, int] = {}
    for pod in pods:
        for column, amount, _ in trial.nodes.demand(pod.shape.request).parts:
            asked[column] = asked.get(column, 0) + amount
    free = np.maximum(trial.free[:, rows], 0).sum(axis=1)
    return all(free[column] >= amount for column, amount in asked.items())


class _Search:
    def __init__(
        self, trial: Trial, rows: dict[Kind, list[int]], related: bool, steps: int
    ) -> None:
        self._trial = trial
        self._rows = rows
        self._related = related
        """True if the order of the pods matters."""
        self._steps = steps

    def extend(self, left: dict[Kind, list[PodFacts]], first: dict[Kind, int]) -> bool:
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
                mark = self._trial.mark()
                if self._trial.put(pod, self._rows[kind][index]):
                    if self.extend(rest, {**first, kind: index}):
                        return True
                    self._trial.rollback(mark)
        return False
