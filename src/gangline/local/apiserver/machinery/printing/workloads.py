"""Printers of services, endpoints, deployments, replica sets and autoscalers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    TablePrinter,
    format_age,
    format_labels,
    format_selector,
    join_or_none,
    make_columns,
    make_printer,
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
        join_or_none(map(_port_text, objects_in(spec.get("ports")))),
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
        ingress = objects_in(subobject(obj, "status", "loadBalancer").get("ingress"))
        given = [each.get("ip") or each.get("hostname") or "" for each in ingress]
        return join_or_none([*given, *addresses]) if given or addresses else "<pending>"
    return join_or_none(addresses)


def _endpoints_text(obj: Json) -> str:
    found = []
    for subset in objects_in(obj.get("subsets")):
        ports = objects_in(subset.get("ports"))
        for address in objects_in(subset.get("addresses")):
            ip = address.get("ip", "")
            found += [f"{ip}:{port.get('port')}" for port in ports] or [ip]
    return _first(found, ENDPOINTS_SHOWN)


def _first(texts: list[str], shown: int, separator: str = ",") -> str:
    more = len(texts) - shown
    return join_or_none(texts[:shown], separator) + (f" + {more} more..." if more > 0 else "")


def _slice_ports(obj: Json) -> str:
    ports = [port.get("port", "*") for port in objects_in(obj.get("ports"))]
    return join_or_none(ports) if ports else "<unset>"


def _slice_addresses(obj: Json) -> str:
    endpoints = objects_in(obj.get("endpoints"))
    found = [address for endpoint in endpoints for address in endpoint.get("addresses", [])]
    return _first(found, ENDPOINTS_SHOWN)


def _template_cells(obj: Json) -> list[Any]:
    containers = objects_in(subobject(obj, "spec", "template", "spec").get("containers"))
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


def _job(obj: Json, now: datetime) -> list[Any]:
    spec, status = subobject(obj, "spec"), subobject(obj, "status")
    desired, succeeded = spec.get("completions"), status.get("succeeded", 0)
    parallelism = spec.get("parallelism", 1)
    if desired is None:
        desired = f"1 of {parallelism}" if parallelism > 1 else "1"
    return [
        object_name(obj),
        _job_state(obj),
        f"{succeeded}/{desired}",
        _job_duration(status, now),
        object_age(obj, now),
        *_template_cells(obj),
    ]


def _job_state(obj: Json) -> str:
    true = {
        each.get("type")
        for each in objects_in(subobject(obj, "status").get("conditions"))
        if each.get("status") == "True"
    }
    if subobject(obj, "metadata").get("deletionTimestamp"):
        return "Terminating"
    states = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((state for state in states if state in true), "Running")


def _job_duration(status: Json, now: datetime) -> str:
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    return format_age(start, datetime.fromisoformat(end) if end else now)


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
    seen = objects_in(status.get("currentMetrics"))
    metrics = objects_in(spec.get("metrics"))
    texts = [
        _metric_text(metric, seen[index] if index < len(seen) else {})
        for index, metric in enumerate(metrics)
    ]
    return _first(texts, METRICS_SHOWN, ", ")


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
    ("", "Endpoints"): make_printer("Name", ("Endpoints", _endpoints_text), "Age"),
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
    ("batch", "Job"): TablePrinter(
        make_columns("Name", "Status", "Completions", "Duration", "Age", *_TEMPLATE), _job
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): TablePrinter(
        make_columns("Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"),
        _autoscaler,
    ),
    ("policy", "PodDisruptionBudget"): make_printer(
        "Name",
        ("Min Available", lambda obj: str(subobject(obj, "spec").get("minAvailable", "N/A"))),
        ("Max Unavailable", lambda obj: str(subobject(obj, "spec").get("maxUnavailable", "N/A"))),
        (
            "Allowed Disruptions",
            lambda obj: subobject(obj, "status").get("disruptionsAllowed", 0),
        ),
        "Age",
    ),
    ("discovery.k8s.io", "EndpointSlice"): make_printer(
        "Name",
        ("AddressType", "addressType"),
        ("Ports", _slice_ports),
        ("Endpoints", _slice_addresses),
        "Age",
    ),
}
