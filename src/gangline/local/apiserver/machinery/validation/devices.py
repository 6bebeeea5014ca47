"""Validation of Dynamic Resource Allocation: claims, classes, slices and taint rules.

CEL expressions are not compiled: the scheduler refuses those that it cannot read.
"""

from collections.abc import Sequence

from gangline.api.core.devices import GROUP, MAX_CONSUMERS, MAX_DEVICES
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import (
    Causes,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

NODE_CHOICES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
EFFECTS = ("None", "NoSchedule", "NoExecute")
MODES = ("ExactCount", "All")


def claim_causes(obj: Json) -> Causes:
    yield from _claim_spec("spec.devices", subobject(obj, "spec", "devices"))


def claim_status_causes(old: Json, new: Json) -> Causes:
    status = subobject(new, "status")
    consumers, allocation = objects_in(status.get("reservedFor")), status.get("allocation")
    former = subobject(old, "status").get("allocation")
    if former and allocation and former != allocation:
        yield field_causes.invalid("status.allocation", allocation, "field is immutable")
    if len(consumers) > MAX_CONSUMERS:
        yield field_causes.too_many("status.reservedFor", len(consumers), MAX_CONSUMERS)
    if consumers and not allocation:
        detail = "may not be specified when `allocated` is not set"
        yield field_causes.forbidden("status.reservedFor", detail)
    results = objects_in(subobject(status, "allocation", "devices").get("results"))
    if len(results) > MAX_DEVICES:
        where = "status.allocation.devices.results"
        yield field_causes.too_many(where, len(results), MAX_DEVICES)


def template_causes(obj: Json) -> Causes:
    yield from _claim_spec("spec.spec.devices", subobject(obj, "spec", "spec", "devices"))


def _claim_spec(path: str, devices: Json) -> Causes:
    known: list[str] = []
    for request in objects_in(devices.get("requests")):
        name = request.get("name")
        options = objects_in(request.get("firstAvailable"))
        known += [str(name), *(f"{name}/{option.get('name')}" for option in options)]
    for index, constraint in enumerate(objects_in(devices.get("constraints"))):
        where = indexed(child(path, "constraints"), index)
        yield from _references(where, constraint, known)
        for field in ("matchAttribute", "distinctAttribute"):
            if constraint.get(field) and "/" not in str(constraint[field]):
                detail = "must include a domain, such as gpu.example.com/model"
                yield field_causes.invalid(child(where, field), constraint[field], detail)
    for index, config in enumerate(objects_in(devices.get("config"))):
        yield from _references(indexed(child(path, "config"), index), config, known)


def _references(path: str, obj: Json, known: Sequence[str]) -> Causes:
    listed = obj.get("requests")
    for index, name in enumerate(listed if isinstance(listed, list) else ()):
        if name not in known:
            detail = "must be the name of a request in the claim"
            yield field_causes.invalid(indexed(child(path, "requests"), index), name, detail)


VALIDATORS = {
    (GROUP, "ResourceClaim"): claim_causes,
    (GROUP, "ResourceClaimTemplate"): template_causes,
}
STATUS_VALIDATORS = {(GROUP, "ResourceClaim"): claim_status_causes}
"""Rules for updates of the status."""
