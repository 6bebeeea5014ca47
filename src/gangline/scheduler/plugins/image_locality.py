"""Image locality: how much of a pod's images each node has already.

The rule is kube-scheduler's ImageLocality. An image on a node counts with its size, in proportion
to the number of nodes that have it, so that not all pods prefer the one node with a rare image.
"""

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.types import NodeInfo

MIN_BYTES = 23 * 2**20
"""Bytes: smaller images are pulled quickly and do not count."""
MAX_BYTES_PER_CONTAINER = 1000 * 2**20
"""Bytes per container above which the score does not grow."""
MAX_CACHED_SCORES = 512
"""Cached score arrays, one for each set of images; the oldest is dropped."""

PodImages = tuple[str, ...]
"""Images of a pod's containers: sorted, one for each container, with duplicates."""


def normalize_image_name(name: str) -> str:
    """Return an image name as nodes list it: without tag and digest the tag is ``latest``."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def image_locality_score(bytes_there: NDArray[np.float64], containers: int) -> NDArray[np.float64]:
    """Return scores between 0 and 1.

    Args:
        bytes_there: bytes of the images on each row, each weighted by the fraction of its nodes.
    """
    most = MAX_BYTES_PER_CONTAINER * containers
    return (np.clip(bytes_there, MIN_BYTES, most) - MIN_BYTES) / (most - MIN_BYTES)


class ImageLocality:
    """Which rows have which images, and the resulting scores.

    Image positions are updated as nodes change. Scores are computed on demand, and cached until one
    of their images or the number of nodes changes.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, dict[int, int]] = {}
        """Bytes by image and row."""
        self._nodes = 0
        self._scores: dict[PodImages, NDArray[np.float64]] = {}

    def update_node(self, row: int, before: NodeInfo | None, after: NodeInfo | None) -> Set[str]:
        """Update a row after its node has changed.

        Returns:
            The images whose scores may have changed, on any row.
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
            # Every image is now on another fraction of the nodes, and rows may have been added.
            self._nodes += more
            self._scores.clear()
            return self._sizes.keys()
        for names in [images for images in self._scores if not moved.isdisjoint(images)]:
            del self._scores[names]
        return moved

    def scores(self, names: PodImages, size: int) -> NDArray[np.float64]:
        """Return a score for each of ``size`` rows; read-only."""
        cached = self._scores.get(names)
        if cached is None:
            weighted_bytes = np.zeros(size)
            for name in names:
                if sizes := self._sizes.get(name):
                    rows = np.fromiter(sizes.keys(), np.intp, len(sizes))
                    amounts = np.fromiter(sizes.values(), np.float64, len(sizes))
                    weighted_bytes[rows] += amounts * (len(sizes) / self._nodes)
            if len(self._scores) >= MAX_CACHED_SCORES:
                self._scores.pop(next(iter(self._scores)))
            cached = self._scores[names] = image_locality_score(weighted_bytes, len(names))
        return cached

    def _set(self, name: str, row: int, size: int | None) -> None:
        """Set the bytes of an image on a row; None: the node does not have it."""
        sizes = self._sizes.setdefault(name, {})
        if size is None:
            sizes.pop(row, None)
        else:
            sizes[row] = size
        if not sizes:
            del self._sizes[name]
