"""Converts claims, volumes, storage classes and CSI objects."""

from collections.abc import Iterable

from gangline.api.core.affinity import NodeSelector
from gangline.api.core.core import PersistentVolume, PersistentVolumeClaim, StorageClass
from gangline.api.meta.objects import LabelSelector
from gangline.api.meta.selectors import EVERYTHING, Selector, SelectorError, selector_from_object
from gangline.api.quantity import QuantityError, parse_whole
from gangline.scheduler.cache.convert import node_term
from gangline.scheduler.plugins.volumes import (
    ClaimInfo,
    StorageCapacities,
    StorageCapacityInfo,
    StorageClassInfo,
    VolumeInfo,
)
from gangline.scheduler.types.types import LabelExpression, NodeTerm
from gangline.scheduler.types.wire import CSIDriver, CSINode, CSIStorageCapacity

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which its volume is provisioned."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_ZONE_SEPARATOR = "__"
"""Separates the zones of one volume."""


def claim_info(claim: PersistentVolumeClaim) -> ClaimInfo:
    metadata, spec = claim.metadata, claim.spec
    bound = claim.status.phase == "Bound"
    return ClaimInfo(
        key=f"{metadata.namespace}/{metadata.name}",
        uid=metadata.uid,
        volume=spec.volume_name if bound else "",
        is_prebound=bool(spec.volume_name) and not bound,
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes),
        size=_size(spec.resources.requests),
        block=spec.volume_mode == "Block",
        selector=_selector(claim),
        selected_node=metadata.annotations.get(SELECTED_NODE, ""),
        is_terminating=metadata.deletion_timestamp is not None,
    )


def volume_info(volume: PersistentVolume) -> VolumeInfo:
    spec = volume.spec
    owner = spec.claim_ref
    return VolumeInfo(
        name=volume.metadata.name,
        terms=_reachable_terms(volume),
        storage_class=spec.storage_class_name,
        modes=frozenset(spec.access_modes),
        size=_size(spec.capacity),
        block=spec.volume_mode == "Block",
        labels=tuple(sorted(volume.metadata.labels.items())),
        claim=f"{owner.namespace}/{owner.name}" if owner else "",
        driver=spec.csi.driver if spec.csi is not None else "",
        is_usable=volume.metadata.deletion_timestamp is None
        and volume.status.phase not in {"Released", "Failed"},
    )


def storage_class_info(made_by: StorageClass) -> StorageClassInfo:
    terms = []
    for topology in made_by.allowed_topologies:
        expressions = topology.get("matchLabelExpressions") or []
        terms.append(
            NodeTerm(
                tuple(
                    LabelExpression(each["key"], "In", tuple(each["values"]))
                    for each in expressions
                )
            )
        )
    return StorageClassInfo(
        name=made_by.metadata.name,
        waits_for_consumer=made_by.volume_binding_mode == "WaitForFirstConsumer",
        can_provision=made_by.provisioner != _NO_PROVISIONER,
        driver=made_by.provisioner,
        allowed_terms=tuple(terms),
        is_default=made_by.metadata.annotations.get(_DEFAULT_CLASS) == "true",
    )


def attach_limits(node: CSINode) -> dict[str, int]:
    """Return the attach limits of a node by driver; drivers without a limit are absent."""
    return {
        driver.name: max(0, driver.allocatable.count)
        for driver in node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }


def capacity_info(capacity: CSIStorageCapacity) -> StorageCapacityInfo:
    """Convert a storage capacity. A size that cannot be parsed counts as 0."""
    largest = capacity.maximum_volume_size
    if largest is None:
        largest = capacity.capacity
    return StorageCapacityInfo(
        storage_class=capacity.storage_class_name,
        nodes=_topology_term(capacity.node_topology),
        max_volume_bytes=_size({"storage": largest}) if largest is not None else None,
    )


def read_capacities(
    drivers: Iterable[CSIDriver], capacities: Iterable[CSIStorageCapacity]
) -> StorageCapacities:
    return StorageCapacities(
        synced=True,
        publishing_drivers={each.metadata.name for each in drivers if publishes_capacity(each)},
        facts={
            f"{each.metadata.namespace}/{each.metadata.name}": capacity_info(each)
            for each in capacities
        },
    )


def publishes_capacity(driver: CSIDriver) -> bool:
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


def _topology_term(topology: LabelSelector | None) -> NodeTerm | None:
    """Return the term that selects the topology's nodes; None: it selects none."""
    if topology is None:
        return None
    try:
        chosen = selector_from_object(topology).requirements
    except SelectorError:
        return None
    return NodeTerm(
        tuple(
            LabelExpression(each.key, _EXPRESSIONS[each.operator], each.values) for each in chosen
        )
    )


def _reachable_terms(volume: PersistentVolume) -> tuple[NodeTerm, ...] | None:
    """Return the terms of the nodes that reach a volume: its node affinity, within its zone."""
    affinity = volume.spec.node_affinity
    required: NodeSelector | None = affinity.required if affinity else None
    zone = tuple(
        LabelExpression(key, "In", tuple(value.split(_ZONE_SEPARATOR)))
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
        return selector_from_object(claim.spec.selector)
    except SelectorError:
        return Selector(matches_nothing=True)


def _size(amounts: dict[str, int | float | str]) -> int:
    try:
        return parse_whole(amounts.get("storage", 0))
    except QuantityError:
        return 0
