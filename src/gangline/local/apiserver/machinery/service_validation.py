"""Validation of services: type, ports, selector, and the immutable cluster IP."""

from gangline.api import names
from gangline.local.apiserver.machinery import field_errors
from gangline.local.apiserver.machinery.field_errors import child, indexed
from gangline.local.apiserver.machinery.json_objects import objects, part
from gangline.local.apiserver.machinery.name_rules import (
    Causes,
    complaint,
    label_causes,
    name_causes,
    one_of,
    port_causes,
)
from gangline.local.apiserver.machinery.schemas import Json

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
PROTOCOLS = ("SCTP", "TCP", "UDP")
HEADLESS = "None"


def service_causes(obj: Json) -> Causes:
    spec = part(obj, "spec")
    kind = spec.get("type", "ClusterIP")
    ports = list(objects(spec.get("ports")))
    yield from one_of("spec.type", kind, TYPES)
    yield from one_of("spec.sessionAffinity", spec.get("sessionAffinity"), ("ClientIP", "None"))
    yield from label_causes("spec.selector", spec.get("selector"))
    if kind == "ExternalName":
        name = str(spec.get("externalName", "")).removesuffix(".")
        yield from name_causes(names.dns_subdomain, "spec.externalName", name)
    elif not ports and spec.get("clusterIP") != HEADLESS:
        yield field_errors.required("spec.ports")
    if kind in ("NodePort", "LoadBalancer") and spec.get("clusterIP") == HEADLESS:
        detail = f"may not be set to 'None' for {kind} services"
        yield field_errors.invalid("spec.clusterIP", HEADLESS, detail)
    yield from _ports(ports)


def service_update_causes(old: Json, new: Json) -> Causes:
    before, after = part(old, "spec"), part(new, "spec")
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
            yield from complaint(names.dns_label, child(where, "name"), name)
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
            yield from complaint(names.port_name, child(where, "targetPort"), target)
        protocol = port.get("protocol", "TCP")
        yield from one_of(child(where, "protocol"), protocol, PROTOCOLS)
        if (protocol, number) in numbers:
            yield field_errors.duplicate(where, {"port": number, "protocol": protocol})
        numbers.add((protocol, number))
