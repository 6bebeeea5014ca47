"""The evaluation of one set of constraints on all nodes, apart from free resources."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class NodeEligibility:
    """Which nodes accept one set of constraints, why the others refuse, and which are preferred."""

    accepted: NDArray[np.bool_]
    messages: list[str]
    preference: NDArray[np.float64]
    has_preference: bool
    prefer_no_schedule: NDArray[np.int32]
    """Number of untolerated PreferNoSchedule taints of each node."""
    has_prefer_no_schedule: bool = False
    """True if some node has, or had, such a taint."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of refusing nodes by message."""

    def set_message(self, row: int, why: str) -> None:
        """Record a row's message; empty: the node accepts the pod, or the row is empty."""
        if former := self.messages[row]:
            self.counts[former] -= 1
        if why:
            self.counts[why] += 1
        self.messages[row] = why
