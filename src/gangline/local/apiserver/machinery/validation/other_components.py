"""Validation of kinds that no component of this cluster acts on.

The rules are those of Kubernetes that keep the objects usable for their readers: required fields,
and fields that cannot change. CEL expressions are not compiled.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from gangline.api.meta import field_causes
from gangline.api.meta.field_causes import child, indexed
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.validation.field_rules import Causes, enum_causes, quantity_causes
from gangline.local.apiserver.machinery.schema.nodes import Json

ADMISSION = "admissionregistration.k8s.io"
CERTIFICATES = "certificates.k8s.io"
NETWORK = "networking.k8s.io"
RESOURCE = "resource.k8s.io"
STORAGE = "storage.k8s.io"
MAX_SERVICE_RANGES = 2
ACTIONS = ("Audit", "Deny", "Warn")
NODE_CHOICES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")

REQUIRED: Mapping[tuple[str, str], tuple[str, ...]] = {
    (ADMISSION, "ValidatingAdmissionPolicy"): ("spec.matchConstraints",),
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): ("spec.policyName", "spec.validationActions"),
    (CERTIFICATES, "CertificateSigningRequest"): (
        "spec.request", "spec.signerName", "spec.usages",
    ),
    (NETWORK, "IPAddress"): ("spec.parentRef.resource", "spec.parentRef.name"),
    (NETWORK, "ServiceCIDR"): ("spec.cidrs",),
    (RESOURCE, "ResourceSlice"): ("spec.driver", "spec.pool.name"),
    (STORAGE, "CSIStorageCapacity"): ("storageClassName",),
    (STORAGE, "VolumeAttachment"): ("spec.attacher", "spec.nodeName", "spec.source"),
    (STORAGE, "VolumeAttributesClass"): ("driverName",),
}  # fmt: skip
"""Fields that must have a value."""
IMMUTABLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    (NETWORK, "IPAddress"): ("spec",),
    (RESOURCE, "ResourceClaim"): ("spec",),
    (RESOURCE, "ResourceClaimTemplate"): ("spec",),
    (RESOURCE, "ResourceSlice"): ("spec.driver", "spec.pool.name", "spec.nodeName"),
    (STORAGE, "CSIStorageCapacity"): ("nodeTopology", "storageClassName"),
    (STORAGE, "VolumeAttachment"): ("spec",),
    (STORAGE, "VolumeAttributesClass"): ("driverName", "parameters"),
}
"""Fields that keep the value they were created with."""


def _value_at(obj: Json, path: str) -> Any:
    *parents, name = path.split(".")
    return subobject(obj, *parents).get(name)


def _required(paths: tuple[str, ...], obj: Json) -> Causes:
    for path in paths:
        if not _value_at(obj, path):
            yield field_causes.required(path)


def _immutable(paths: tuple[str, ...], old: Json, new: Json) -> Causes:
    for path in paths:
        value = _value_at(new, path)
        if value != _value_at(old, path):
            yield field_causes.invalid(path, value, "field is immutable")


def _policy(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        detail = "validations or auditAnnotations must contain at least one item"
        yield field_causes.required("spec.validations", detail)
    for index, rule in enumerate(objects_in(spec.get("validations"))):
        if not rule.get("expression"):
            yield field_causes.required(child(indexed("spec.validations", index), "expression"))
    yield from enum_causes("spec.failurePolicy", spec.get("failurePolicy"), ("Fail", "Ignore"))


def _policy_binding(obj: Json) -> Causes:
    actions = subobject(obj, "spec").get("validationActions")
    for index, action in enumerate(actions if isinstance(actions, list) else ()):
        yield from enum_causes(indexed("spec.validationActions", index), action, ACTIONS)


def _node_drivers(obj: Json) -> Causes:
    seen = set[object]()
    for index, driver in enumerate(objects_in(subobject(obj, "spec").get("drivers"))):
        where = indexed("spec.drivers", index)
        for name in ("name", "nodeID"):
            if not driver.get(name):
                yield field_causes.required(child(where, name))
        if driver.get("name") in seen:
            yield field_causes.duplicate(child(where, "name"), driver["name"])
        seen.add(driver.get("name"))


def _node_drivers_update(old: Json, new: Json) -> Causes:
    before = {each.get("name"): each for each in objects_in(subobject(old, "spec").get("drivers"))}
    for index, driver in enumerate(objects_in(subobject(new, "spec").get("drivers"))):
        former = before.get(driver.get("name"))
        if former is not None and former != driver:
            yield field_causes.invalid(
                indexed("spec.drivers", index), driver, "field is immutable"
            )  # fmt: skip


def _capacity(obj: Json) -> Causes:
    for name in ("capacity", "maximumVolumeSize"):
        if (amount := obj.get(name)) is not None:
            yield from quantity_causes(name, amount)


def _attachment(obj: Json) -> Causes:
    source = subobject(obj, "spec", "source")
    given = [name for name in ("inlineVolumeSpec", "persistentVolumeName") if source.get(name)]
    if source and len(given) != 1:
        detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        yield field_causes.required("spec.source", detail)


def _claim_requests(where: str, claim: Json) -> Causes:
    seen = set[object]()
    for index, request in enumerate(objects_in(subobject(claim, "devices").get("requests"))):
        path = indexed(f"{where}.devices.requests", index)
        name = request.get("name")
        if not name:
            yield field_causes.required(child(path, "name"))
        elif name in seen:
            yield field_causes.duplicate(child(path, "name"), name)
        seen.add(name)
        if bool(request.get("exactly")) == bool(request.get("firstAvailable")):
            detail = "exactly one of `exactly` or `firstAvailable` is required"
            yield field_causes.invalid(path, request, detail)
        exactly = request.get("exactly")
        if isinstance(exactly, dict) and not exactly.get("deviceClassName"):
            yield field_causes.required(child(path, "exactly.deviceClassName"))


def _claim(obj: Json) -> Causes:
    yield from _claim_requests("spec", subobject(obj, "spec"))


def _claim_template(obj: Json) -> Causes:
    yield from _claim_requests("spec.spec", subobject(obj, "spec", "spec"))


def _slice(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    given = [name for name in NODE_CHOICES if spec.get(name)]
    if len(given) != 1:
        detail = f"exactly one of `{'`, `'.join(NODE_CHOICES)}` is required"
        yield field_causes.invalid("spec", given, detail)
    for index, device in enumerate(objects_in(spec.get("devices"))):
        if not device.get("name"):
            yield field_causes.required(child(indexed("spec.devices", index), "name"))


def _service_ranges(obj: Json) -> Causes:
    ranges = subobject(obj, "spec").get("cidrs")
    if isinstance(ranges, list) and len(ranges) > MAX_SERVICE_RANGES:
        yield field_causes.too_many("spec.cidrs", len(ranges), MAX_SERVICE_RANGES)


def _service_ranges_update(old: Json, new: Json) -> Causes:
    before, after = _value_at(old, "spec.cidrs"), _value_at(new, "spec.cidrs")
    # A range of the other address family may be added.
    if isinstance(before, list) and (not isinstance(after, list) or after[: len(before)] != before):
        yield field_causes.invalid("spec.cidrs", after, "field is immutable")


_RULES = {
    (ADMISSION, "ValidatingAdmissionPolicy"): _policy,
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): _policy_binding,
    (NETWORK, "ServiceCIDR"): _service_ranges,
    (RESOURCE, "ResourceClaim"): _claim,
    (RESOURCE, "ResourceClaimTemplate"): _claim_template,
    (RESOURCE, "ResourceSlice"): _slice,
    (STORAGE, "CSINode"): _node_drivers,
    (STORAGE, "CSIStorageCapacity"): _capacity,
    (STORAGE, "VolumeAttachment"): _attachment,
}


def _causes(kind: tuple[str, str], obj: Json) -> Causes:
    yield from _required(REQUIRED.get(kind, ()), obj)
    if (rule := _RULES.get(kind)) is not None:
        yield from rule(obj)


VALIDATORS = {kind: partial(_causes, kind) for kind in {*REQUIRED, *_RULES}}
UPDATE_VALIDATORS = {kind: partial(_immutable, paths) for kind, paths in IMMUTABLE.items()} | {
    (NETWORK, "ServiceCIDR"): _service_ranges_update,
    (STORAGE, "CSINode"): _node_drivers_update,
}
