"""Where storage drivers say that there is room for a volume that is yet to be made. Pure.

Of a driver that publishes how much is left (CSIStorageCapacity), a volume can only be made for
nodes of a topology with room for all of it, as kube-scheduler has it. Others are taken to have
room everywhere.
"""

from dataclasses import dataclass, field

from gangline.api.quantity import Form, Quantity
from gangline.scheduler.model import NodeTerm


@dataclass(frozen=True, slots=True)
class CapacityFacts:
    """How much a driver has left for volumes of one class, in one part of the cluster."""

    storage_class: str
    nodes: NodeTerm | None
    """The nodes that reach it, all of them if nothing is said; None: no node does."""
    largest: int | None
    """The largest volume that can be made, in bytes; None: that is not known."""

    def holds(self, storage_class: str, size: int) -> bool:
        """Say whether a volume of this class and size can be made there."""
        fits = self.largest is not None and self.largest >= size
        return fits and self.storage_class == storage_class and self.nodes is not None


@dataclass(slots=True)
class Capacities:
    """What all drivers say."""

    known: bool = False
    """Everything was read; until then, and where the cluster has no such kind, nothing counts."""
    publishing: set[str] = field(default_factory=set)
    """The drivers that say how much is left."""
    facts: dict[str, CapacityFacts] = field(default_factory=dict)

    def terms(self, driver: str, storage_class: str, size: int) -> tuple[NodeTerm, ...] | None:
        """Return the nodes that a volume can be made for; None: all."""
        if not (self.known and size and driver in self.publishing):
            return None
        found = {each.nodes for each in self.facts.values() if each.holds(storage_class, size)}
        terms = [term for term in found if term is not None]
        if NodeTerm() in terms:
            return None
        return tuple(sorted(terms, key=repr))


def too_little(storage_class: str, size: int) -> str:
    """Say, after Kubernetes' words, what nodes have too little of."""
    wanted = Quantity(size * 10**9, Form.BINARY)
    return f"node(s) did not have enough free storage ({wanted} free of class {storage_class!r})"
