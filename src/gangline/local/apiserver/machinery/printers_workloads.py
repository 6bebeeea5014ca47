"""Printers of services, endpoints, deployments, replica sets and autoscalers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gangline.local.apiserver.machinery.json_objects import objects, part
from gangline.local.apiserver.machinery.printer import (
    NONE,
    Printer,
    columns,
    created_age,
    joined,
    labels_text,
    name_of,
    selector_text,
)
from gangline.local.apiserver.machinery.schemas import Json

ENDPOINTS_SHOWN = 3
METRICS_SHOWN = 2


def _service(obj: Json, now: datetime) -> list[Any]:
    spec = part(obj, "spec")
    kind = spec.get("type", "ClusterIP")
    cluster_ip = spec.get("clusterIP") or NONE
    return [
        name_of(obj),
        kind,
        NONE if kind == "ExternalName" else cluster_ip,
        _external_addresses(obj, kind),
        joined(map(_port_text, objects(spec.get("ports")))),
        created_age(obj, now),
        labels_text(spec.get("selector")),
    ]


def _port_text(port: Json) -> str:
    number, protocol = port.get("port"), port.get("protocol", "TCP")
    node_port = port.get("nodePort")
    return f"{number}:{node_port}/{protocol}" if node_port else f"{number}/{protocol}"


def _external_addresses(obj: Json, kind: str) -> str:
    spec = part(obj, "spec")
    if kind == "ExternalName":
        return str(spec.get("externalName", NONE))
    addresses = list(spec.get("externalIPs") or [])
    if kind == "LoadBalancer":
        ingress = objects(part(obj, "status", "loadBalancer").get("ingress"))
        given = [each.get("ip") or each.get("hostname") or "" for each in ingress]
        return joined([*given, *addresses]) if given or addresses else "<pending>"
    return joined(addresses)


def _endpoints(obj: Json, now: datetime) -> list[Any]:
    found = []
    for subset in objects(obj.get("subsets")):
        ports = list(objects(subset.get("ports")))
        for address in objects(subset.get("addresses")):
            ip = address.get("ip", "")
            found += [f"{ip}:{port.get('port')}" for port in ports] or [ip]
    more = len(found) - ENDPOINTS_SHOWN
    text = joined(found[:ENDPOINTS_SHOWN]) + (f" + {more} more..." if more > 0 else "")
    return [name_of(obj), text, created_age(obj, now)]


def _endpoint_slice(obj: Json, now: datetime) -> list[Any]:
    ports = [port.get("port", "*") for port in objects(obj.get("ports"))]
    each = [address for of in objects(obj.get("endpoints")) for address in of.get("addresses", [])]
    more = len(each) - ENDPOINTS_SHOWN
    text = joined(each[:ENDPOINTS_SHOWN]) + (f" + {more} more..." if more > 0 else "")
    kind = obj.get("addressType", "")
    return [name_of(obj), kind, joined(ports) if ports else "<unset>", text, created_age(obj, now)]


def _template_cells(obj: Json) -> list[Any]:
    containers = list(objects(part(obj, "spec", "template", "spec").get("containers")))
    return [
        joined(container.get("name", "") for container in containers),
        joined(container.get("image", "") for container in containers),
        selector_text(part(obj, "spec", "selector")),
    ]


def _deployment(obj: Json, now: datetime) -> list[Any]:
    status, desired = part(obj, "status"), part(obj, "spec").get("replicas", 1)
    return [
        name_of(obj),
        f"{status.get('readyReplicas', 0)}/{desired}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        created_age(obj, now),
        *_template_cells(obj),
    ]


def _replica_set(obj: Json, now: datetime) -> list[Any]:
    status = part(obj, "status")
    return [
        name_of(obj),
        part(obj, "spec").get("replicas", 1),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        created_age(obj, now),
        *_template_cells(obj),
    ]


def _disruption_budget(obj: Json, now: datetime) -> list[Any]:
    spec, status = part(obj, "spec"), part(obj, "status")
    return [
        name_of(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        status.get("disruptionsAllowed", 0),
        created_age(obj, now),
    ]


def _autoscaler(obj: Json, now: datetime) -> list[Any]:
    spec, target = part(obj, "spec"), part(obj, "spec", "scaleTargetRef")
    return [
        name_of(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics_text(spec, part(obj, "status")),
        str(spec.get("minReplicas", "<unset>")),
        spec.get("maxReplicas", 0),
        part(obj, "status").get("currentReplicas", 0),
        created_age(obj, now),
    ]


def _metrics_text(spec: Json, status: Json) -> str:
    if share := spec.get("targetCPUUtilizationPercentage"):  # autoscaling/v1 has no other metric
        seen_share = status.get("currentCPUUtilizationPercentage")
        return f"cpu: {'<unknown>' if seen_share is None else f'{seen_share}%'}/{share}%"
    seen = list(objects(status.get("currentMetrics")))
    metrics = list(objects(spec.get("metrics")))
    texts = [
        _metric_text(metric, seen[index] if index < len(seen) else {})
        for index, metric in enumerate(metrics[:METRICS_SHOWN])
    ]
    more = len(metrics) - METRICS_SHOWN
    return joined(texts, ", ") + (f" + {more} more..." if more > 0 else "")


def _metric_text(metric: Json, seen: Json) -> str:
    source = str(metric.get("type", ""))
    source = source[:1].lower() + source[1:]
    name = part(metric, source).get("name") or part(metric, source, "metric").get("name", "")
    target, current = part(metric, source, "target"), part(seen, source, "current")
    if "averageUtilization" in target:
        share = current.get("averageUtilization")
        shown = "<unknown>" if share is None else f"{share}%"
        return f"{name}: {shown}/{target['averageUtilization']}%"
    field = "averageValue" if "averageValue" in target else "value"
    average = " (avg)" if field == "averageValue" and source in ("object", "external") else ""
    return f"{name}: {current.get(field, '<unknown>')}/{target.get(field, '<auto>')}{average}"


_TEMPLATE = ("+Containers", "+Images", "+Selector")

WORKLOAD_PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "Endpoints"): Printer(columns("Name", "Endpoints", "Age"), _endpoints),
    ("", "Service"): Printer(
        columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"),
        _service,
    ),
    ("apps", "Deployment"): Printer(
        columns("Name", "Ready", "Up-to-date", "Available", "Age", *_TEMPLATE), _deployment
    ),
    ("apps", "ReplicaSet"): Printer(
        columns("Name", "Desired", "Current", "Ready", "Age", *_TEMPLATE), _replica_set
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        columns("Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"),
        _autoscaler,
    ),
    ("policy", "PodDisruptionBudget"): Printer(
        columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"),
        _disruption_budget,
    ),
    ("discovery.k8s.io", "EndpointSlice"): Printer(
        columns("Name", "AddressType", "Ports", "Endpoints", "Age"), _endpoint_slice
    ),
}
