"""Validation of services: type, ports, selector, and the immutable cluster IP."""

from gangline.api import names
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    rule_causes,
    label_causes,
    name_causes,
    enum_causes,
    port_causes,
)
from gangline.local.apiserver.machinery.schemas import Json

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
PROTOCOLS = ("SCTP", "TCP", "UDP")
HEADLESS = "None"


def service_causes(obj: Json) -> Causes:
    spec = subobject(obj, "spec")
    kind = spec.get("type", "ClusterIP")
    ports = list(iter_objects(spec.get("ports")))
    yield from enum_causes("spec.type", kind, TYPES)
    yield from enum_causes(
        "spec.sessionAffinity", spec.get("sessionAffinity"), ("ClientIP", "None")
    )
    yield from label_causes("spec.selector", spec.get("selector"))
    if kind == "ExternalName":
        name = str(spec.get("externalName", "")).removesuffix(".")
        yield from name_causes(names.validate_dns_subdomain, "spec.externalName", name)
    elif not ports and spec.get("clusterIP") != HEADLESS:
        yield field_errors.required("spec.ports")
    if kind in ("NodePort", "LoadBalancer") and spec.get("clusterIP") == HEADLESS:
        detail = f"may not be set to 'None' for {kind} services"
        yield field_errors.invalid("spec.clusterIP", HEADLESS, detail)
    yield from _ports(ports)


def service_update_causes(old: Json, new: Json) -> Causes:
    before, after = subobject(old, "spec"), subobject(new, "spec")
    address = before.get("clusterIP")
    if "ExternalName" in (before.get("type"), after.get("type")) or not address:
        return
    if after.get("clusterIP") and after["clusterIP"] != address:
        yield field_errors.invalid("spec.clusterIP", after["clusterIP"], "field is immutable")


def _ports(ports: list[Json]) -> Causes:
    taken, numbers = set[object](), set[object]()
    for index, port in enumerate(ports):
        where = indexed("spec.ports", index)
        name, number = port.get("name"), port.get("port")
        if name:
            yield from rule_causes(names.validate_dns_label, child(where, "name"), name)
            if name in taken:
                yield field_errors.duplicate(child(where, "name"), name)
            taken.add(name)
        elif len(ports) > 1:
            yield field_errors.required(child(where, "name"))
        if not number:
            yield field_errors.required(child(where, "port"))
        yield from port_causes(child(where, "port"), number or None)
        target = port.get("targetPort")
        yield from port_causes(child(where, "targetPort"), target)
        if isinstance(target, str) and not target.isdigit():
            yield from rule_causes(names.validate_port_name, child(where, "targetPort"), target)
        protocol = port.get("protocol", "TCP")
        yield from enum_causes(child(where, "protocol"), protocol, PROTOCOLS)
        if (protocol, number) in numbers:
            yield field_errors.duplicate(where, {"port": number, "protocol": protocol})
        numbers.add((protocol, number))
