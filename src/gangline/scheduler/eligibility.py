"""The evaluation of one set of constraints on all nodes, apart from free resources."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Eligibility:
    """Which nodes accept one set of constraints, why the others refuse, and which are preferred."""

    accepts: NDArray[np.bool_]
    refusals: list[str]
    preference: NDArray[np.float64]
    prefers: bool
    discouraged: NDArray[np.int32]
    """Number of untolerated PreferNoSchedule taints of each node."""
    discourages: bool = False
    """True if some node has, or had, such a taint."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of refusing nodes by message."""

    def note(self, row: int, why: str) -> None:
        """Record a row's message; empty: the node accepts the pod, or the row is empty."""
        if former := self.refusals[row]:
            self.counts[former] -= 1
        if why:
            self.counts[why] += 1
        self.refusals[row] = why
