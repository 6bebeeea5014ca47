"""The printer of pods. Their status contains the reason of a failure, as in kubectl."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    TablePrinter,
    find_condition,
    format_duration,
    has_deletion_timestamp,
    latest_time,
    make_columns,
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
    scheduled = find_condition(status.get("conditions"), "PodScheduled")
    if scheduled.get("reason") == "SchedulingGated":
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
        ended = subobject(container, "state", "terminated")
        waiting = subobject(container, "state", "waiting")
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
    sidecars = {
        container.get("name")
        for container in objects_in(subobject(pod, "spec").get("initContainers"))
        if _is_sidecar(container)
    }
    for container in objects_in(subobject(pod, "status").get("initContainerStatuses")):
        if container.get("name") in sidecars:
            summary.count_restarts(container)
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


def _termination_reason(ended: Json) -> str:
    if reason := ended.get("reason"):
        return str(reason)
    if signal := ended.get("signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{ended.get('exitCode', 0)}"


def _is_sidecar(container: Json) -> bool:
    return container.get("restartPolicy") == "Always"


def _condition_is_true(pod: Json, kind: str) -> bool:
    conditions = subobject(pod, "status").get("conditions")
    return bool(find_condition(conditions, kind).get("status") == "True")


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


POD_PRINTER = TablePrinter(
    make_columns(
        "Name", "Ready", "Status", "Restarts", "Age",
        "+IP", "+Node", "+Nominated Node", "+Readiness Gates",
    ),
    _cells,
    _conditions,
)  # fmt: skip
