"""Printers of services, endpoints, deployments, replica sets and autoscalers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gangline.local.apiserver.machinery.json_objects import iter_objects, subobject
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    TablePrinter,
    format_labels,
    format_selector,
    join_or_none,
    make_columns,
    object_age,
    object_name,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

ENDPOINTS_SHOWN = 3
METRICS_SHOWN = 2


def _service(obj: Json, now: datetime) -> list[Any]:
    spec = subobject(obj, "spec")
    kind = spec.get("type", "ClusterIP")
    cluster_ip = spec.get("clusterIP") or NONE
    return [
        object_name(obj),
        kind,
        NONE if kind == "ExternalName" else cluster_ip,
        _external_addresses(obj, kind),
        join_or_none(map(_port_text, iter_objects(spec.get("ports")))),
        object_age(obj, now),
        format_labels(spec.get("selector")),
    ]


def _port_text(port: Json) -> str:
    number, protocol = port.get("port"), port.get("protocol", "TCP")
    node_port = port.get("nodePort")
    return f"{number}:{node_port}/{protocol}" if node_port else f"{number}/{protocol}"


def _external_addresses(obj: Json, kind: str) -> str:
    spec = subobject(obj, "spec")
    if kind == "ExternalName":
        return str(spec.get("externalName", NONE))
    addresses = list(spec.get("externalIPs") or [])
    if kind == "LoadBalancer":
        ingress = iter_objects(subobject(obj, "status", "loadBalancer").get("ingress"))
        given = [each.get("ip") or each.get("hostname") or "" for each in ingress]
        return join_or_none([*given, *addresses]) if given or addresses else "<pending>"
    return join_or_none(addresses)


def _endpoints(obj: Json, now: datetime) -> list[Any]:
    found = []
    for subset in iter_objects(obj.get("subsets")):
        ports = list(iter_objects(subset.get("ports")))
        for address in iter_objects(subset.get("addresses")):
            ip = address.get("ip", "")
            found += [f"{ip}:{port.get('port')}" for port in ports] or [ip]
    more = len(found) - ENDPOINTS_SHOWN
    text = join_or_none(found[:ENDPOINTS_SHOWN]) + (f" + {more} more..." if more > 0 else "")
    return [object_name(obj), text, object_age(obj, now)]


def _endpoint_slice(obj: Json, now: datetime) -> list[Any]:
    ports = [port.get("port", "*") for port in iter_objects(obj.get("ports"))]
    each = [
        address for of in iter_objects(obj.get("endpoints")) for address in of.get("addresses", [])
    ]
    more = len(each) - ENDPOINTS_SHOWN
    text = join_or_none(each[:ENDPOINTS_SHOWN]) + (f" + {more} more..." if more > 0 else "")
    kind = obj.get("addressType", "")
    return [
        object_name(obj),
        kind,
        join_or_none(ports) if ports else "<unset>",
        text,
        object_age(obj, now),
    ]


def _template_cells(obj: Json) -> list[Any]:
    containers = list(iter_objects(subobject(obj, "spec", "template", "spec").get("containers")))
    return [
        join_or_none(container.get("name", "") for container in containers),
        join_or_none(container.get("image", "") for container in containers),
        format_selector(subobject(obj, "spec", "selector")),
    ]


def _deployment(obj: Json, now: datetime) -> list[Any]:
    status, desired = subobject(obj, "status"), subobject(obj, "spec").get("replicas", 1)
    return [
        object_name(obj),
        f"{status.get('readyReplicas', 0)}/{desired}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        object_age(obj, now),
        *_template_cells(obj),
    ]


def _replica_set(obj: Json, now: datetime) -> list[Any]:
    status = subobject(obj, "status")
    return [
        object_name(obj),
        subobject(obj, "spec").get("replicas", 1),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        object_age(obj, now),
        *_template_cells(obj),
    ]


def _disruption_budget(obj: Json, now: datetime) -> list[Any]:
    spec, status = subobject(obj, "spec"), subobject(obj, "status")
    return [
        object_name(obj),
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        status.get("disruptionsAllowed", 0),
        object_age(obj, now),
    ]


def _autoscaler(obj: Json, now: datetime) -> list[Any]:
    spec, target = subobject(obj, "spec"), subobject(obj, "spec", "scaleTargetRef")
    return [
        object_name(obj),
        f"{target.get('kind', '')}/{target.get('name', '')}",
        _metrics_text(spec, subobject(obj, "status")),
        str(spec.get("minReplicas", "<unset>")),
        spec.get("maxReplicas", 0),
        subobject(obj, "status").get("currentReplicas", 0),
        object_age(obj, now),
    ]


def _metrics_text(spec: Json, status: Json) -> str:
    if share := spec.get("targetCPUUtilizationPercentage"):  # autoscaling/v1 has no other metric
        seen_share = status.get("currentCPUUtilizationPercentage")
        return f"cpu: {'<unknown>' if seen_share is None else f'{seen_share}%'}/{share}%"
    seen = list(iter_objects(status.get("currentMetrics")))
    metrics = list(iter_objects(spec.get("metrics")))
    texts = [
        _metric_text(metric, seen[index] if index < len(seen) else {})
        for index, metric in enumerate(metrics[:METRICS_SHOWN])
    ]
    more = len(metrics) - METRICS_SHOWN
    return join_or_none(texts, ", ") + (f" + {more} more..." if more > 0 else "")


def _metric_text(metric: Json, seen: Json) -> str:
    source = str(metric.get("type", ""))
    source = source[:1].lower() + source[1:]
    name = subobject(metric, source).get("name") or subobject(metric, source, "metric").get(
        "name", ""
    )
    target, current = subobject(metric, source, "target"), subobject(seen, source, "current")
    if "averageUtilization" in target:
        share = current.get("averageUtilization")
        shown = "<unknown>" if share is None else f"{share}%"
        return f"{name}: {shown}/{target['averageUtilization']}%"
    field = "averageValue" if "averageValue" in target else "value"
    average = " (avg)" if field == "averageValue" and source in ("object", "external") else ""
    return f"{name}: {current.get(field, '<unknown>')}/{target.get(field, '<auto>')}{average}"


_TEMPLATE = ("+Containers", "+Images", "+Selector")

WORKLOAD_PRINTERS: Mapping[tuple[str, str], TablePrinter] = {
    ("", "Endpoints"): TablePrinter(make_columns("Name", "Endpoints", "Age"), _endpoints),
    ("", "Service"): TablePrinter(
        make_columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"),
        _service,
    ),
    ("apps", "Deployment"): TablePrinter(
        make_columns("Name", "Ready", "Up-to-date", "Available", "Age", *_TEMPLATE), _deployment
    ),
    ("apps", "ReplicaSet"): TablePrinter(
        make_columns("Name", "Desired", "Current", "Ready", "Age", *_TEMPLATE), _replica_set
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): TablePrinter(
        make_columns("Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"),
        _autoscaler,
    ),
    ("policy", "PodDisruptionBudget"): TablePrinter(
        make_columns("Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"),
        _disruption_budget,
    ),
    ("discovery.k8s.io", "EndpointSlice"): TablePrinter(
        make_columns("Name", "AddressType", "Ports", "Endpoints", "Age"), _endpoint_slice
    ),
}
