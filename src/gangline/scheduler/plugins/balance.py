"""How evenly a node's resources are used: a node out of processors cannot use its memory. Pure.

The measure is Kubernetes' (``NodeResourcesBalancedAllocation``): of the parts that are used of CPU,
memory and the devices that the pod asks for, how far they lie apart.
"""

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.node_scores import Amounts, Scores


def evenness(left: Amounts, allocatable: Amounts) -> Scores:
    """Return how evenly each node (column) uses its resources (rows): 1 when perfectly so.

    Resources of which a node has none do not count there.
    """
    there: NDArray[np.bool_] = allocatable > 0
    used = np.where(there, np.clip(1.0 - left / np.maximum(allocatable, 1), 0.0, 1.0), 0.0)
    count = np.maximum(there.sum(axis=0), 1)
    apart = np.where(there, used - used.sum(axis=0) / count, 0.0)
    even: Scores = 1.0 - np.sqrt((apart**2).sum(axis=0) / count)
    return even
