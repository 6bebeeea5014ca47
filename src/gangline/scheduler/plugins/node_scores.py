"""Which of the nodes that will do is best: gangs pack, and devices are not wasted.

Scores are added; each lies between 0 and 1 before its weight. Packing (see ``trial``) keeps whole
nodes free for the next gang; pods without devices stay off nodes that have some, so that devices
do not starve for want of a CPU.
"""

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import Constraints, NodeFacts
from gangline.scheduler.plugins.node_filters import matches

Amounts = NDArray[np.int64]
Scores = NDArray[np.float64]

CPU_WEIGHT = 1.0
MEMORY_WEIGHT = 1.0
DEVICE_WEIGHT = 5.0
"""Devices are dear: how full they are decides before CPU and memory do."""
SPARE_DEVICES_WEIGHT = 2.0
AFFINITY_WEIGHT = 2.0


def resource_weight(resource: str) -> float:
    """Return how much a resource counts in packing: devices more, pods not at all."""
    match resource:
        case "cpu":
            return CPU_WEIGHT
        case "memory":
            return MEMORY_WEIGHT
        case _:
            return DEVICE_WEIGHT if is_device(resource) else 0.0


def is_device(resource: str) -> bool:
    """Say whether a resource is an extended one (``nvidia.com/gpu``): scarce and indivisible."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


def preference(constraints: Constraints, node: NodeFacts) -> float:
    """Return how well a node suits the pod's preferred affinity, between 0 and 1."""
    total = sum(weight for weight, _ in constraints.preferred)
    if not total:
        return 0.0
    labels = dict(node.labels)
    met = sum(w for w, term in constraints.preferred if matches(term, labels, node.name))
    return met / total
