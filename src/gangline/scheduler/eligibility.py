"""What one set of constraints makes of the nodes, apart from room."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Eligibility:
    """Which nodes will do for one set of constraints, why the others do not, which are liked."""

    accepts: NDArray[np.bool_]
    refusals: list[str]
    preference: NDArray[np.float64]
    prefers: bool
    discouraged: NDArray[np.int32]
    """How many marks each node has that the pod would rather not put up with."""
    discourages: bool = False
    """Some node has, or had, such a mark."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many nodes will not do, by reason."""

    def note(self, row: int, why: str) -> None:
        """Note why a row's node will not do (empty: it will, or there is none)."""
        if former := self.refusals[row]:
            self.counts[former] -= 1
        if why:
            self.counts[why] += 1
        self.refusals[row] = why
