"""Storage capacity: where drivers can still provision a volume (CSIStorageCapacity).

A driver that publishes its capacity can provision a volume only for nodes of a topology with enough
capacity for all of it, as in kube-scheduler. Other drivers are assumed to have capacity everywhere.
"""

from dataclasses import dataclass, field

from gangline.api.quantity import QuantityFormat, Quantity
from gangline.scheduler.model import NodeTerm


@dataclass(frozen=True, slots=True)
class StorageCapacityInfo:
    """The capacity of one storage class in one topology."""

    storage_class: str
    nodes: NodeTerm | None
    """Term of the nodes that reach it, an empty term for all nodes; None: no node."""
    max_volume_bytes: int | None
    """Size in bytes of the largest volume that can be provisioned; None: unknown."""

    def can_provision(self, storage_class: str, size: int) -> bool:
        fits = self.max_volume_bytes is not None and self.max_volume_bytes >= size
        return fits and self.storage_class == storage_class and self.nodes is not None


@dataclass(slots=True)
class StorageCapacities:
    """The published capacity of all drivers."""

    synced: bool = False
    """True once everything was read; until then, and without the kinds, no capacity is considered.
    """
    publishing_drivers: set[str] = field(default_factory=set)
    """Drivers that publish their capacity."""
    facts: dict[str, StorageCapacityInfo] = field(default_factory=dict)

    def terms(self, driver: str, storage_class: str, size: int) -> tuple[NodeTerm, ...] | None:
        """Return the terms of the nodes for which a volume can be provisioned; None: all nodes."""
        if not (self.synced and size and driver in self.publishing_drivers):
            return None
        found = {
            each.nodes for each in self.facts.values() if each.can_provision(storage_class, size)
        }
        terms = [term for term in found if term is not None]
        if NodeTerm() in terms:
            return None
        return tuple(sorted(terms, key=repr))


def capacity_message(storage_class: str, size: int) -> str:
    """Return the message of nodes without enough capacity, in Kubernetes' style."""
    needed = Quantity(size * 10**9, QuantityFormat.BINARY)
    return f"node(s) did not have enough free storage ({needed} free of class {storage_class!r})"
