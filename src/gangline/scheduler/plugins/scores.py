"""Node scores: which of the accepted nodes is best. Gangs are packed, and devices are not wasted.

The total is a weighted sum; each score lies between 0 and 1. Packing keeps unused nodes free for
the next gang. Pods without devices avoid nodes with devices. All pods avoid to leave devices that
typical requests cannot use, for lack of devices beside them or of CPU and memory
(``stranded_devices``). The balance score is Kubernetes' ``NodeResourcesBalancedAllocation``: the
deviation between the used fractions of CPU, memory and the devices that the pod requests.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.plugins.filters import term_matches
from gangline.scheduler.types import NodeInfo, PlacementConstraints

Amounts = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoreWeights:
    """Weights of the scores."""

    packing: float = 1.0
    """Prefers full nodes; a negative weight prefers empty nodes, which spreads pods."""
    cpu: float = 1.0
    memory: float = 1.0
    device: float = 5.0
    """Devices are expensive: their usage outweighs that of CPU and memory."""
    resources: tuple[tuple[str, float], ...] = ()
    """Other weights of single resources."""
    spare_devices: float = 2.0
    """Against nodes whose devices the pod does not need."""
    stranded_devices: float = 2.0
    """Against devices that the requests which the cluster sees cannot use after the placement."""
    same_device_model: float = 1.0
    """Above 0: gangs stay on nodes with one device model if they fit there."""
    fewer_nodes: float = 0.0
    """Against each node that a gang's pods with devices use; a node that was unused before costs 1.
    """
    affinity: float = 2.0
    """Preferred node affinity."""
    pod_affinity: float = 2.0
    """Preferred inter-pod affinity."""
    spreading: float = 2.0
    """Topology spread with ``ScheduleAnyway``."""
    discouraged: float = 3.0
    """Against each untolerated ``PreferNoSchedule`` taint."""
    balance: float = 0.0
    """Balanced use of CPU, memory and devices of a node."""
    images: float = 0.0
    """Nodes that have the pod's images. With 0 images are neither decoded nor stored."""
    seed: int = 0
    """Order of equally good nodes; 0: by name."""

    @property
    def scores_each_pod(self) -> bool:
        """True if a node may get worse by being used: then each pod is scored by itself.

        Else the best node stays the best, and takes pods of one shape in one step.
        """
        return self.packing < 0 or self.balance > 0

    def resource_weight(self, resource: str) -> float:
        """Return the packing weight of a resource; pod slots have none."""
        special = dict(self.resources).get(resource)
        if special is not None:
            return special
        match resource:
            case "cpu":
                return self.cpu
            case "memory":
                return self.memory
            case _:
                return self.device if is_device(resource) else 0.0


def is_device(resource: str) -> bool:
    """Return whether a resource is an extended one (``nvidia.com/gpu``): scarce and indivisible."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


def preference_score(constraints: PlacementConstraints, node: NodeInfo) -> float:
    """Return how well a node matches the pod's preferred affinity, between 0 and 1."""
    total = sum(weight for weight, _ in constraints.preferred)
    if not total:
        return 0.0
    labels = dict(node.labels)
    met = sum(w for w, term in constraints.preferred if term_matches(term, labels, node.name))
    return met / total


def balance_score(left: Amounts, allocatable: Amounts) -> Scores:
    """Return the balance of each node (column) over its resources (rows): 1 if fractions are equal.

    Resources that a node does not have are left out.
    """
    offered: NDArray[np.bool_] = allocatable > 0
    used = np.where(offered, np.clip(1.0 - left / np.maximum(allocatable, 1), 0.0, 1.0), 0.0)
    count = np.maximum(offered.sum(axis=0), 1)
    apart = np.where(offered, used - used.sum(axis=0) / count, 0.0)
    even: Scores = 1.0 - np.sqrt((apart**2).sum(axis=0) / count)
    return even
