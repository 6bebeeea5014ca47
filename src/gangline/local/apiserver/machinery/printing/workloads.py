"""Printers of pods, services, endpoints, deployments, replica sets, jobs and autoscalers.

The status of a pod contains the reason of a failure, as in kubectl.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    TablePrinter,
    format_age,
    format_duration,
    format_labels,
    format_selector,
    has_deletion_timestamp,
    join_or_none,
    latest_time,
    make_columns,
    make_printer,
    object_age,
    object_name,
)
from gangline.local.apiserver.machinery.schema.nodes import Json


@dataclass(slots=True)
class PodStatusSummary:
    """Totals over the containers of a pod."""

    reason: str
    ready: int = 0
    restarts: int = 0
    restart_times: list[object] = field(default_factory=list)
    """Times at which containers ended before their last restart."""

    def count_restarts(self, container: Json) -> None:
        self.restarts += container.get("restartCount", 0)
        if finished := subobject(container, "lastState", "terminated").get("finishedAt"):
            self.restart_times.append(finished)


def _summary(pod: Json) -> PodStatusSummary:
    status = subobject(pod, "status")
    summary = PodStatusSummary(status.get("reason") or status.get("phase") or "Unknown")
    if _condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        summary.reason = "SchedulingGated"
    initializing = _summarize_init_containers(pod, summary)
    if not initializing or _condition_is_true(pod, "Initialized"):
        _summarize_containers(pod, summary)
    if has_deletion_timestamp(pod):
        lost = status.get("reason") == "NodeLost"
        if lost or status.get("phase") not in TERMINAL_PHASES:
            summary.reason = "Unknown" if lost else "Terminating"
    return summary


def _summarize_init_containers(pod: Json, summary: PodStatusSummary) -> bool:
    """Return True if the pod is still initializing; the summary's reason is its progress."""
    specs = {of.get("name"): of for of in objects_in(subobject(pod, "spec").get("initContainers"))}
    for place, container in enumerate(
        objects_in(subobject(pod, "status").get("initContainerStatuses"))
    ):
        summary.count_restarts(container)
        ended, waiting = (
            subobject(container, "state", "terminated"),
            subobject(container, "state", "waiting"),
        )
        if ended and not ended.get("exitCode"):
            continue
        if _is_sidecar(specs.get(container.get("name"), {})) and container.get("started"):
            summary.ready += bool(container.get("ready"))
            continue
        if ended:
            summary.reason = f"Init:{_termination_reason(ended)}"
        elif waiting.get("reason") not in (None, "", "PodInitializing"):
            summary.reason = f"Init:{waiting['reason']}"
        else:
            summary.reason = f"Init:{place}/{len(specs)}"
        return True
    return False


def _summarize_containers(pod: Json, summary: PodStatusSummary) -> None:
    # As in kubectl: restarts of finished init containers do not count.
    summary.restarts, summary.restart_times = 0, []
    _count_sidecars(pod, summary)
    running = False
    for container in reversed(objects_in(subobject(pod, "status").get("containerStatuses"))):
        summary.count_restarts(container)
        state = subobject(container, "state")
        waiting, ended = subobject(state, "waiting"), subobject(state, "terminated")
        if waiting.get("reason"):
            summary.reason = waiting["reason"]
        elif "terminated" in state and state["terminated"] is not None:
            summary.reason = _termination_reason(ended)
        elif container.get("ready") and "running" in state:
            running = True
            summary.ready += 1
    if summary.reason == "Completed" and running:
        summary.reason = "Running" if _condition_is_true(pod, "Ready") else "NotReady"


def _count_sidecars(pod: Json, summary: PodStatusSummary) -> None:
    names = {
        of.get("name")
        for of in objects_in(subobject(pod, "spec").get("initContainers"))
        if _is_sidecar(of)
    }
    for container in objects_in(subobject(pod, "status").get("initContainerStatuses")):
        if container.get("name") in names:
            summary.count_restarts(container)


def _termination_reason(ended: Json) -> str:
    if reason := ended.get("reason"):
        return str(reason)
    if signal := ended.get("signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _is_sidecar(container: Json) -> bool:
    return container.get("restartPolicy") == "Always"


def _condition(pod: Json, kind: str) -> Json:
    conditions = objects_in(subobject(pod, "status").get("conditions"))
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def _condition_is_true(pod: Json, kind: str) -> bool:
    return _condition(pod, kind).get("status") == "True"


def _cells(pod: Json, now: datetime) -> list[Any]:
    spec, status, summary = subobject(pod, "spec"), subobject(pod, "status"), _summary(pod)
    sidecars = sum(map(_is_sidecar, objects_in(spec.get("initContainers"))))
    total = sidecars + len(objects_in(spec.get("containers")))
    restarts = str(summary.restarts)
    if summary.restarts and (last := latest_time(summary.restart_times)):
        restarts += f" ({format_duration((now - last).total_seconds())} ago)"
    addresses = objects_in(status.get("podIPs")) or [{"ip": status.get("podIP")}]
    gates = [gate.get("conditionType", "") for gate in objects_in(spec.get("readinessGates"))]
    return [
        object_name(pod),
        f"{summary.ready}/{total}",
        summary.reason,
        restarts,
        object_age(pod, now),
        addresses[0].get("ip") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        f"{sum(_condition_is_true(pod, gate) for gate in gates)}/{len(gates)}" if gates else NONE,
    ]


def _conditions(pod: Json) -> list[Json]:
    phase = subobject(pod, "status").get("phase")
    if phase not in TERMINAL_PHASES:
        return []
    message = "The pod has completed successfully." if phase == "Succeeded" else "The pod failed."
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


POD_PRINTERS: Mapping[tuple[str, str], TablePrinter] = {
    ("", "Pod"): TablePrinter(
        make_columns(
            "Name", "Ready", "Status", "Restarts", "Age",
            "+IP", "+Node", "+Nominated Node", "+Readiness Gates",
        ),
        _cells,
        _conditions,
    )
}  # fmt: skip


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
        given = [address.get("ip") or address.get("hostname") or "" for address in ingress]
        return join_or_none([*given, *addresses]) if given or addresses else "<pending>"
    return join_or_none(addresses)


def _endpoints_text(obj: Json) -> str:
    addresses = []
    for subset in objects_in(obj.get("subsets")):
        ports = objects_in(subset.get("ports"))
        for address in objects_in(subset.get("addresses")):
            ip = address.get("ip", "")
            addresses += [f"{ip}:{port.get('port')}" for port in ports] or [ip]
    return _first(addresses, ENDPOINTS_SHOWN)


def _first(texts: list[str], shown: int, separator: str = ",") -> str:
    more = len(texts) - shown
    return join_or_none(texts[:shown], separator) + (f" + {more} more..." if more > 0 else "")


def _slice_ports(obj: Json) -> str:
    ports = [port.get("port", "*") for port in objects_in(obj.get("ports"))]
    return join_or_none(ports) if ports else "<unset>"


def _slice_addresses(obj: Json) -> str:
    endpoints = objects_in(obj.get("endpoints"))
    addresses = [address for endpoint in endpoints for address in endpoint.get("addresses", [])]
    return _first(addresses, ENDPOINTS_SHOWN)


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
        condition.get("type")
        for condition in objects_in(subobject(obj, "status").get("conditions"))
        if condition.get("status") == "True"
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
        make_columns(
            "Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *_TEMPLATE
        ),
        _replica_set,
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
            "Allowed Disruptions:integer",
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
