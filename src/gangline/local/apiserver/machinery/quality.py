"""The quality-of-service class of a pod: the kill order when a node runs out of memory."""

from collections.abc import Mapping
from typing import Any

from gangline.api.quantity import Quantity
from gangline.local.apiserver.machinery.amounts import quantity_or_none
from gangline.local.apiserver.machinery.json_objects import subobject
from gangline.local.apiserver.machinery.pod_defaults import all_containers
from gangline.local.apiserver.machinery.schemas import Json

COMPUTE_RESOURCES = ("cpu", "memory")


def qos_class(spec: Json) -> str:
    """Return Guaranteed, Burstable or BestEffort, from the containers' requests and limits."""
    resources = [subobject(container, "resources") for container in all_containers(spec)]
    requests = [_compute_quantities(subobject(each, "requests")) for each in resources]
    limits = [_compute_quantities(subobject(each, "limits")) for each in resources]
    if not any((*requests, *limits)):
        return "BestEffort"
    complete = all(len(each) == len(COMPUTE_RESOURCES) for each in limits)
    equal = all({**top, **low} == top for low, top in zip(requests, limits, strict=True))
    return "Guaranteed" if complete and equal else "Burstable"


def _compute_quantities(of: Mapping[str, Any]) -> dict[str, Quantity]:
    found = {name: quantity_or_none(of.get(name, 0)) for name in COMPUTE_RESOURCES}
    return {name: value for name, value in found.items() if value}
