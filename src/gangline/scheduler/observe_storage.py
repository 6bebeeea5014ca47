"""Converts claims, volumes, storage classes and CSI objects."""

from collections.abc import Iterable

from gangline.api.affinity import NodeSelector
from gangline.api.core import PersistentVolume, PersistentVolumeClaim, StorageClass
from gangline.api.meta import LabelSelector
from gangline.api.quantity import QuantityError, whole
from gangline.api.selectors import EVERYTHING, Selector, SelectorError, from_object
from gangline.scheduler.capacity import Capacities, CapacityFacts
from gangline.scheduler.model import Expression, NodeTerm
from gangline.scheduler.observe import node_term
from gangline.scheduler.storage import ClaimFacts, ClassFacts, VolumeFacts
from gangline.scheduler.wire import CSIDriver, CSINode, CSIStorageCapacity

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which its volume is provisioned."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_SEVERAL = "__"
"""Separates the zones of one volume."""


def claim_facts(claim: PersistentVolumeClaim) -> ClaimFacts:
    metadata, spec = claim.metadata, claim.spec
    bound = claim.status.phase == "Bound"
    return ClaimFacts(
        key=f"{metadata.namespace}/{metadata.name}",
        uid=metadata.uid,
        volume=spec.volume_name if bound else "",
        promised=bool(spec.volume_name) and not bound,
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes),
        size=_size(spec.resources.requests),
        block=spec.volume_mode == "Block",
        selector=_selector(claim),
        selected=metadata.annotations.get(SELECTED_NODE, ""),
        going=metadata.deletion_timestamp is not None,
    )


def volume_facts(volume: PersistentVolume) -> VolumeFacts:
    spec = volume.spec
    owner = spec.claim_ref
    return VolumeFacts(
        name=volume.metadata.name,
        terms=_reached_from(volume),
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes),
        size=_size(spec.capacity),
        block=spec.volume_mode == "Block",
        labels=tuple(sorted(volume.metadata.labels.items())),
        claim=f"{owner.namespace}/{owner.name}" if owner else "",
        driver=spec.csi.driver if spec.csi is not None else "",
        usable=volume.metadata.deletion_timestamp is None
        and volume.status.phase not in {"Released", "Failed"},
    )


def class_facts(made_by: StorageClass) -> ClassFacts:
    terms = []
    for topology in made_by.allowed_topologies:
        expressions = topology.get("matchLabelExpressions") or []
        terms.append(
            NodeTerm(
                tuple(Expression(each["key"], "In", tuple(each["values"])) for each in expressions)
            )
        )
    return ClassFacts(
        name=made_by.metadata.name,
        waits=made_by.volume_binding_mode == "WaitForFirstConsumer",
        provisions=made_by.provisioner != _NO_PROVISIONER,
        driver=made_by.provisioner,
        terms=tuple(terms),
        default=made_by.metadata.annotations.get(_DEFAULT_CLASS) == "true",
    )


def attach_limits(node: CSINode) -> dict[str, int]:
    """Return the attach limits of a node by driver; drivers without a limit are absent."""
    return {
        driver.name: max(0, driver.allocatable.count)
        for driver in node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


def capacity_facts(capacity: CSIStorageCapacity) -> CapacityFacts:
    """Convert a storage capacity. A size that cannot be parsed counts as 0."""
    largest = capacity.maximum_volume_size
    if largest is None:
        largest = capacity.capacity
    return CapacityFacts(
        storage_class=capacity.storage_class_name,
        nodes=_nodes_of(capacity.node_topology),
        largest=_size({"storage": largest}) if largest is not None else None,
    )


def read_capacities(
    drivers: Iterable[CSIDriver], capacities: Iterable[CSIStorageCapacity]
) -> Capacities:
    return Capacities(
        known=True,
        publishing={each.metadata.name for each in drivers if publishes(each)},
        facts={
            f"{each.metadata.namespace}/{each.metadata.name}": capacity_facts(each)
            for each in capacities
        },
    )


def publishes(driver: CSIDriver) -> bool:
    """Return whether a driver wants its storage capacity to be considered."""
    return driver.spec.storage_capacity is True


_EXPRESSIONS = {
    "=": "In",
    "in": "In",
    "!=": "NotIn",
    "notin": "NotIn",
    "exists": "Exists",
    "!": "DoesNotExist",
}


def _nodes_of(topology: LabelSelector | None) -> NodeTerm | None:
    """Return the term that selects the topology's nodes; None: it selects none."""
    if topology is None:
        return None
    try:
        chosen = from_object(topology).requirements
    except SelectorError:
        return None
    return NodeTerm(
        tuple(Expression(each.key, _EXPRESSIONS[each.operator], each.values) for each in chosen)
    )


def _reached_from(volume: PersistentVolume) -> tuple[NodeTerm, ...] | None:
    """Return the terms of the nodes that reach a volume: its node affinity, within its zone."""
    affinity = volume.spec.node_affinity
    required: NodeSelector | None = affinity.required if affinity else None
    zone = tuple(
        Expression(key, "In", tuple(value.split(_SEVERAL)))
        for key, value in sorted(volume.metadata.labels.items())
        if key in _ZONES
    )
    if required is None:
        return (NodeTerm(zone),) if zone else None
    terms = map(node_term, required.node_selector_terms)
    return tuple(NodeTerm((*term.labels, *zone), term.fields) for term in terms)


def _selector(claim: PersistentVolumeClaim) -> Selector:
    if claim.spec.selector is None:
        return EVERYTHING
    try:
        return from_object(claim.spec.selector)
    except SelectorError:
        return Selector(nothing=True)


def _size(amounts: dict[str, int | float | str]) -> int:
    try:
        return whole(amounts.get("storage", 0))
    except QuantityError:
        return 0
