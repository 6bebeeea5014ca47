"""Failures that no user's code caused, and the device hours in which they happened. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gangline.api.failure import is_node_cause
from gangline.brain.advisers.view import Exposure
from gangline.brain.facts.records import PodRun, Run

_HOUR_MS = 3_600_000
WINDOW_MS = 30 * 24 * _HOUR_MS
"""What ended earlier does not count."""


def exposure(runs: Iterable[Run], now_ms: int) -> Exposure:
    """Return the exposure of all pods of ``runs``."""
    return total(exposure_by_node(runs, now_ms).values())


def exposure_by_node(runs: Iterable[Run], now_ms: int) -> dict[str, Exposure]:
    """Return the exposure on each node; pods whose node is not known are under an empty name.

    Pods without devices count as one device. Pods of one job that fail on one node in one minute
    are one failure.
    """
    failures: dict[str, set[tuple[str, int]]] = defaultdict(set)
    hours: dict[str, float] = defaultdict(float)
    for run in runs:
        devices = {size.role: max(size.gpus, 1) for size in run.job.roles}
        for pod in run.pods:
            ended_ms = now_ms if pod.ended_ms is None else pod.ended_ms
            if now_ms - ended_ms > WINDOW_MS:
                continue
            lasted_ms = max(0, ended_ms - pod.started_ms)
            hours[pod.node] += lasted_ms / _HOUR_MS * devices.get(pod.role, 1)
            if is_node_failure(pod):
                failures[pod.node].add((run.job.uid, ended_ms // 60_000))
    return {
        node: Exposure(failures=float(len(failures[node])), gpu_hours=hours[node]) for node in hours
    }


def is_node_failure(pod: PodRun) -> bool:
    """Return whether a fault of the machine has ended the pod."""
    return pod.ended_ms is not None and is_node_cause(pod.cause)


def total(found: Iterable[Exposure]) -> Exposure:
    """Return the sum."""
    failures = gpu_hours = 0.0
    for each in found:
        failures += each.failures
        gpu_hours += each.gpu_hours
    return Exposure(failures=failures, gpu_hours=gpu_hours)


def of_nodes(known: Mapping[str, Exposure], nodes: Iterable[str]) -> Exposure:
    """Return the exposure of some nodes."""
    return total(known[node] for node in sorted(set(nodes)) if node in known)
