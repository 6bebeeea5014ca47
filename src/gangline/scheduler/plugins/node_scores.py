"""Which of the nodes that will do is best: gangs pack, and devices are not wasted.

Scores are added; each lies between 0 and 1 before its weight. Packing (see ``trial``) keeps whole
nodes free for the next gang; pods without devices stay off nodes that have some, so that devices
do not starve for want of a CPU.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import Constraints, NodeFacts
from gangline.scheduler.plugins.node_filters import matches

Amounts = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each consideration counts in the choice between nodes that will do."""

    packing: float = 1.0
    """Full nodes first; below nothing: empty nodes first, which spreads."""
    cpu: float = 1.0
    memory: float = 1.0
    device: float = 5.0
    """Devices are dear: how full they are decides before CPU and memory do."""
    resources: tuple[tuple[str, float], ...] = ()
    """Other weights for single resources."""
    spare_devices: float = 2.0
    """Against nodes whose devices a pod does not need."""
    one_model: float = 1.0
    """Above nothing: gangs stay on nodes with devices of one model, as far as they fit there."""
    together: float = 0.0
    """Against each node that a gang's pods with devices are spread over; a node that was whole
    before weighs 1."""
    fragments: float = 0.0
    """Against leaving devices over where the usual pods cannot use them."""
    affinity: float = 2.0
    """Preferred node affinity."""
    pod_affinity: float = 2.0
    """Preferred affinity between pods."""
    spreading: float = 2.0
    """Spreading over places as far as possible (``ScheduleAnyway``)."""
    discouraged: float = 3.0
    """Against each mark of a node that pods would rather not put up with (``PreferNoSchedule``)."""
    balance: float = 0.0
    """Using CPU, memory and devices of a node evenly."""
    images: float = 0.0
    """Nodes that have the images of a pod's containers. At 0 images are neither read nor kept."""
    seed: int = 0
    """Which of nodes that are equally good goes first; 0: the first by name."""

    @property
    def one_by_one(self) -> bool:
        """Whether a node may get worse by being used.

        Else the best node stays the best, and takes all pods that are alike at once.
        """
        return self.packing < 0 or self.balance > 0

    @property
    def stays_best(self) -> bool:
        """Whether the best node surely stays the best of all while it has room.

        Packing makes it better still; what is left over on it may suit the usual pods worse.
        """
        return not (self.one_by_one or self.fragments)

    def of(self, resource: str) -> float:
        """Return how much a resource counts in packing: devices more, pods not at all."""
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
