"""Errors in PodGroups and Queues that no schema can express."""

from collections.abc import Iterator

from gangline.api.schema.field_error import FieldError, child_path
from gangline.api.validation.common_rules import quantity_errors
from gangline.api.volcano.scheduling import PodGroup, Queue


def validate_pod_group(group: PodGroup, old: PodGroup | None = None) -> Iterator[FieldError]:
    for name, written in (group.spec.min_resources or {}).items():
        yield from quantity_errors(child_path("spec.minResources", name), written)
    topology = group.spec.network_topology
    if topology and topology.highest_tier_name and topology.highest_tier_allowed is not None:
        where = "spec.networkTopology.highestTierName"
        problem = "is given together with highestTierAllowed"
        yield FieldError(where, topology.highest_tier_name, problem, "give one of the two")


def validate_queue(queue: Queue, old: Queue | None = None) -> Iterator[FieldError]:
    spec = queue.spec
    guarantee = spec.guarantee.resource if spec.guarantee else {}
    amounts = (("capability", spec.capability), ("deserved", spec.deserved))
    for field, given in (*amounts, ("guarantee.resource", guarantee)):
        for name, written in given.items():
            yield from quantity_errors(child_path(f"spec.{field}", name), written)
    if spec.parent and spec.parent == queue.metadata.name:
        yield FieldError("spec.parent", spec.parent, "is the queue itself", "name another queue")
