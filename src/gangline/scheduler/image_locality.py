"""How much of what a pod's containers are made from lies on each node already. Pure.

By the rule of kube-scheduler's ImageLocality: an image that a node has counts with its size, and
the more the more nodes have it, so that not all pods run after the one node with a rare image.
"""

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import NodeFacts

LEAST = 23 * 2**20
"""Bytes: less than that is pulled in a moment and counts for nothing."""
MOST_EACH = 1000 * 2**20
"""Bytes for each container: more than that counts no further."""
MAX_KEPT = 512
"""Sets of images whose scores are kept; then the oldest goes."""

Wanted = tuple[str, ...]
"""The images of a pod's containers: sorted, one for each container, equal ones repeated."""


def normalised(name: str) -> str:
    """Return an image's name as nodes write it: without tag and digest the tag is ``latest``."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def locality(bytes_there: NDArray[np.float64], containers: int) -> NDArray[np.float64]:
    """Return scores between 0 and 1.

    Args:
        bytes_there: what of a pod's images is there, each in proportion to the nodes that have it.
        containers: how many containers the pod has.
    """
    most = MOST_EACH * containers
    return (np.clip(bytes_there, LEAST, most) - LEAST) / (most - LEAST)


class ImageLocality:
    """Which rows of a table of nodes have which images, and the scores that follow.

    Where images are is kept as nodes change; scores are worked out when somebody asks, and kept
    until one of their images comes or goes somewhere, or the number of nodes changes.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, dict[int, int]] = {}
        """By image: the rows that have it, and its bytes there."""
        self._nodes = 0
        self._scores: dict[Wanted, NDArray[np.float64]] = {}

    def changed(self, row: int, before: NodeFacts | None, after: NodeFacts | None) -> Set[str]:
        """Take over what a change of one row's node means.

        Returns:
            The images that may count otherwise than before, on whatever row.
        """
        if before is not None and after is not None and before.images == after.images:
            return frozenset()
        had = dict(before.images) if before is not None else {}
        has = dict(after.images) if after is not None else {}
        moved = {name for name, _ in had.items() ^ has.items()}
        for name in moved:
            self._set(name, row, has.get(name))
        more = (after is not None) - (before is not None)
        if more:
            # Every image is now on another part of the nodes; and there may be more rows.
            self._nodes += more
            self._scores.clear()
            return self._sizes.keys()
        for wanted in [each for each in self._scores if not moved.isdisjoint(each)]:
            del self._scores[wanted]
        return moved

    def scores(self, wanted: Wanted, size: int) -> NDArray[np.float64]:
        """Return a score for each of ``size`` rows; not to be written to."""
        known = self._scores.get(wanted)
        if known is None:
            there = np.zeros(size)
            for name in wanted:
                if sizes := self._sizes.get(name):
                    rows = np.fromiter(sizes.keys(), np.intp, len(sizes))
                    amounts = np.fromiter(sizes.values(), np.float64, len(sizes))
                    there[rows] += amounts * (len(sizes) / self._nodes)
            if len(self._scores) >= MAX_KEPT:
                self._scores.pop(next(iter(self._scores)))
            known = self._scores[wanted] = locality(there, len(wanted))
        return known

    def _set(self, name: str, row: int, size: int | None) -> None:
        """Note the bytes of an image on a row; None: it is not there."""
        sizes = self._sizes.setdefault(name, {})
        if size is None:
            sizes.pop(row, None)
        else:
            sizes[row] = size
        if not sizes:
            del self._sizes[name]
