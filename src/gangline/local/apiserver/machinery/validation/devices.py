"""Validation of Dynamic Resource Allocation: claims, classes, slices and taint rules.

CEL expressions are not compiled: the scheduler refuses those that it cannot read.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gangline.api import names
from gangline.api.core.devices import GROUP, MAX_CONSUMERS, MAX_DEVICES
from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import (
    Causes,
    enum_causes,
    minimum_causes,
    name_causes,
    quantity_causes,
    rule_causes,
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


def class_causes(obj: Json) -> Causes:
    yield from _selectors("spec.selectors", subobject(obj, "spec"))


def _claim_spec(path: str, devices: Json) -> Causes:
    known: list[str] = []
    for index, request in enumerate(objects_in(devices.get("requests"))):
        where = indexed(child(path, "requests"), index)
        name = request.get("name")
        yield from name_causes(names.validate_dns_label, child(where, "name"), name)
        if name in known:
            yield field_causes.duplicate(child(where, "name"), name)
        known.append(str(name))
        exactly, options = request.get("exactly"), objects_in(request.get("firstAvailable"))
        if bool(exactly) == bool(options):
            detail = "exactly one of `exactly` or `firstAvailable` is required"
            yield field_causes.invalid(where, request, detail)
        elif isinstance(exactly, dict):
            yield from _request(child(where, "exactly"), exactly)
        for number, option in enumerate(options):
            sub = indexed(child(where, "firstAvailable"), number)
            own = option.get("name")
            yield from name_causes(names.validate_dns_label, child(sub, "name"), own)
            known.append(f"{name}/{own}")
            yield from _request(sub, option)
    for index, constraint in enumerate(objects_in(devices.get("constraints"))):
        where = indexed(child(path, "constraints"), index)
        yield from _references(where, constraint, known)
        given = [n for n in ("matchAttribute", "distinctAttribute") if constraint.get(n)]
        if len(given) != 1:
            detail = "exactly one of `matchAttribute` or `distinctAttribute` is required"
            yield field_causes.invalid(where, constraint, detail)
        for field in given:
            if "/" not in str(constraint[field]):
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


def _request(path: str, request: Json) -> Causes:
    where = child(path, "deviceClassName")
    yield from name_causes(names.validate_dns_subdomain, where, request.get("deviceClassName"))
    mode, count = request.get("allocationMode") or MODES[0], request.get("count")
    yield from enum_causes(child(path, "allocationMode"), mode, MODES)
    if mode == "All" and count:
        detail = "must not be specified when allocationMode is `All`"
        yield field_causes.invalid(child(path, "count"), count, detail)
    elif mode == MODES[0] and count is not None:
        yield from minimum_causes(child(path, "count"), count, 1)
    yield from _selectors(child(path, "selectors"), request)
    for index, toleration in enumerate(objects_in(request.get("tolerations"))):
        where = indexed(child(path, "tolerations"), index)
        operator = toleration.get("operator") or "Equal"
        yield from enum_causes(child(where, "operator"), operator, ("Equal", "Exists"))
        if operator == "Exists" and toleration.get("value"):
            detail = "must be empty for operator `Exists`"
            yield field_causes.invalid(child(where, "value"), toleration["value"], detail)
        if toleration.get("effect"):
            yield from enum_causes(child(where, "effect"), toleration["effect"], EFFECTS[1:])


def _selectors(path: str, owner: Json) -> Causes:
    for index, selector in enumerate(objects_in(owner.get("selectors"))):
        if not subobject(selector, "cel").get("expression"):
            yield field_causes.required(child(indexed(path, index), "cel.expression"))


def slice_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    yield from name_causes(names.validate_dns_subdomain, "spec.driver", spec.get("driver"))
    pool = subobject(spec, "pool")
    if not pool.get("name"):
        yield field_causes.required("spec.pool.name")
    if pool:
        count = pool.get("resourceSliceCount") or 0
        yield from minimum_causes("spec.pool.resourceSliceCount", count, 1)
    given = [name for name in NODE_CHOICES if spec.get(name)]
    if len(given) != 1:
        detail = f"exactly one of `{'`, `'.join(NODE_CHOICES)}` is required"
        yield field_causes.invalid("spec", given, detail)
    seen = set[object]()
    for index, device in enumerate(objects_in(spec.get("devices"))):
        where = indexed("spec.devices", index)
        name = device.get("name")
        yield from name_causes(names.validate_dns_label, child(where, "name"), name)
        if name in seen:
            yield field_causes.duplicate(child(where, "name"), name)
        seen.add(name)
        for key, capacity in subobject(device, "capacity").items():
            if isinstance(capacity, dict):
                at = f"{child(where, 'capacity')}[{key}].value"
                yield from quantity_causes(at, capacity.get("value"))
        for number, taint in enumerate(objects_in(device.get("taints"))):
            yield from _taint(indexed(child(where, "taints"), number), taint)


def slice_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    yield from _immutable(("driver", "nodeName"), before, after)
    yield from _immutable(
        ("name",), subobject(before, "pool"), subobject(after, "pool"), "spec.pool"
    )


def taint_rule_causes(obj: Json) -> Causes:
    yield from _taint("spec.taint", subobject(obj, "spec", "taint"))


def _taint(path: str, taint: Json) -> Causes:
    yield from name_causes(names.validate_label_key, child(path, "key"), taint.get("key"))
    if taint.get("value"):
        yield from rule_causes(names.validate_label_value, child(path, "value"), taint["value"])
    if not taint.get("effect"):
        yield field_causes.required(child(path, "effect"))
    else:
        yield from enum_causes(child(path, "effect"), taint["effect"], EFFECTS)


def _immutable(fields: Sequence[str], old: Json, new: Json, path: str = "spec") -> Causes:
    for field in fields:
        if new.get(field) != old.get(field):
            where = field if field == path else child(path, field)
            yield field_causes.invalid(where, new.get(field), "field is immutable")


VALIDATORS = {
    (GROUP, "DeviceClass"): class_causes,
    (GROUP, "DeviceTaintRule"): taint_rule_causes,
    (GROUP, "ResourceClaim"): claim_causes,
    (GROUP, "ResourceClaimTemplate"): template_causes,
    (GROUP, "ResourceSlice"): slice_causes,
}
UPDATE_VALIDATORS: Mapping[tuple[str, str], Callable[[Json, Json], Causes]] = {
    (GROUP, "ResourceClaim"): partial(_immutable, ("spec",)),
    (GROUP, "ResourceClaimTemplate"): partial(_immutable, ("spec",)),
    (GROUP, "ResourceSlice"): slice_update_causes,
}
STATUS_VALIDATORS = {(GROUP, "ResourceClaim"): claim_status_causes}
"""Rules for updates of the status."""
