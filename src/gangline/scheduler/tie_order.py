"""The order of rows that breaks ties between equally good nodes, whatever came first.

By name; or, for who wants another one, drawn by a seed from each name by itself, so that nodes that
come or go leave the order of the others as it was.
"""

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import NodeName


class TieOrder:
    """Worked out when somebody asks, and kept until nodes come or go.

    Args:
        seed: which order; 0: that of the names.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
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
            names = sorted(rows, key=self._drawn) if self._seed else sorted(rows)
            ordered = [rows[name] for name in names]
            self._rank[ordered] = np.arange(len(ordered))
            self._is_row_order = ordered == sorted(ordered)
        return self._rank

    def is_row_order(self, rows: Mapping[NodeName, int], size: int) -> bool:
        """Say whether the first of several rows is also the first in this order."""
        self.rank(rows, size)
        return self._is_row_order

    def _drawn(self, name: NodeName) -> tuple[bytes, NodeName]:
        return blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest(), name
