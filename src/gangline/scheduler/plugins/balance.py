"""Balanced allocation: a node without free CPU cannot use its memory.

The score is Kubernetes' ``NodeResourcesBalancedAllocation``: the deviation between the used
fractions of CPU, memory and the devices that the pod requests.
"""

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.node_scores import Amounts, Scores


def balance_score(left: Amounts, allocatable: Amounts) -> Scores:
    """Return the balance of each node (column) over its resources (rows): 1 if fractions are equal.

    Resources that a node does not have are left out.
    """
    there: NDArray[np.bool_] = allocatable > 0
    used = np.where(there, np.clip(1.0 - left / np.maximum(allocatable, 1), 0.0, 1.0), 0.0)
    count = np.maximum(there.sum(axis=0), 1)
    apart = np.where(there, used - used.sum(axis=0) / count, 0.0)
    even: Scores = 1.0 - np.sqrt((apart**2).sum(axis=0) / count)
    return even
