"""The order of rows that breaks ties between equally good nodes; it does not depend on arrival.

The order is by name. With a seed it is by a hash of seed and name, so that added or removed nodes
do not change the order of the others.
"""

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import NodeName


class TieOrder:
    """Computed on demand and cached until nodes are added or removed.

    Args:
        seed: which order; 0: by name.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._rank: NDArray[np.intp] | None = None
        self._is_row_order = False

    def invalidate(self) -> None:
        self._rank = None

    def rank(self, rows: Mapping[NodeName, int], size: int) -> NDArray[np.intp]:
        """Return the rank of each row; undefined for empty rows.

        Args:
            rows: the row of each node.
            size: the number of rows.
        """
        if self._rank is None:
            self._rank = np.zeros(size, dtype=np.intp)
            names = sorted(rows, key=self._seeded_key) if self._seed else sorted(rows)
            ordered = [rows[name] for name in names]
            self._rank[ordered] = np.arange(len(ordered))
            self._is_row_order = ordered == sorted(ordered)
        return self._rank

    def is_row_order(self, rows: Mapping[NodeName, int], size: int) -> bool:
        """Return whether the first of several rows is also the first in this order."""
        self.rank(rows, size)
        return self._is_row_order

    def _seeded_key(self, name: NodeName) -> tuple[bytes, NodeName]:
        return blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest(), name
