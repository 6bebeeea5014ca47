"""The order of rows by their nodes' names: it breaks ties, whatever came first."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import NodeName


class NameOrder:
    """Worked out when somebody asks, and kept until nodes come or go."""

    def __init__(self) -> None:
        self._rank: NDArray[np.intp] | None = None
        self._is_row_order = False

    def forget(self) -> None:
        """Work it out anew."""
        self._rank = None

    def rank(self, rows: Mapping[NodeName, int], size: int) -> NDArray[np.intp]:
        """Return each row's place; of rows without a node it means nothing.

        Args:
            rows: the row of each node.
            size: how many rows there are.
        """
        if self._rank is None:
            self._rank = np.zeros(size, dtype=np.intp)
            ordered = [rows[name] for name in sorted(rows)]
            self._rank[ordered] = np.arange(len(ordered))
            self._is_row_order = ordered == sorted(ordered)
        return self._rank

    def is_row_order(self, rows: Mapping[NodeName, int], size: int) -> bool:
        """Say whether the first of several rows is also the first by name."""
        self.rank(rows, size)
        return self._is_row_order
