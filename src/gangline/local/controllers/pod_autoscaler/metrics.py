"""Autoscaler metrics: the number of replicas that one metric proposes.

The rule is ``ceil(replicas * measured / target)``. A pod without a measurement counts against the
change: at its full target if the proposal is to scale down, at zero if it is to scale up. So gaps
in the measurements change little.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from gangline.api.cluster.autoscaling import (
    MetricSpec,
    MetricStatus,
    MetricValueStatus,
    ResourceMetricStatus,
)
from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, container_request, format_resource, parse_resource
from gangline.local.controllers.replica_sets.plan import is_pod_active

TOLERANCE = 0.1
"""A relative deviation below this changes nothing; Kubernetes' default."""
PodUsage = Mapping[str, Mapping[str, int]]
"""The usage of each pod by resource name; pods without measurements are missing."""


class MetricUnavailable(Exception):
    """A metric has no value now."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ReplicaProposal:
    replicas: int
    status: MetricStatus
    metric_description: str
    """A description of the metric for messages."""


@dataclass(frozen=True, slots=True)
class _PodMetric:
    used: int | None
    target: float
    assumed: float
    """The usage that is assumed if none is measured and the proposal is to scale down."""


def propose_replicas(
    metric: MetricSpec, current: int, pods: Sequence[Pod], usage: PodUsage
) -> ReplicaProposal:
    """Compute the number of replicas that a metric proposes for a target with ``current`` replicas.
    Raises MetricUnavailable: there is no measurement, or the type of the metric is not supported.
    """
    if metric.type != "Resource" or metric.resource is None:
        raise MetricUnavailable(
            "InvalidMetricSourceType",
            f"the HPA was unable to compute the replica count: metrics of type {metric.type} are "
            "not measured by this cluster, only Resource is",
        )
    name, target = metric.resource.name, metric.resource.target
    active = list(filter(is_pod_active, pods))
    if not active:
        raise _unavailable(name, "no pods returned by selector while calculating replica count")
    try:
        shares = {pod.metadata.name: _pod_metric(metric, pod, usage) for pod in active}
    except QuantityError as error:
        raise _unavailable(name, str(error)) from None
    unready = {pod.metadata.name for pod in active if not _is_measurable(pod, name)}
    measured = {
        pod: share for pod, share in shares.items()
        if share.used is not None and pod not in unready
    }  # fmt: skip
    if not measured:
        raise _unavailable(
            name, "did not receive metrics for targeted pods (pods might be unready)"
        )
    replicas = _replicas(current, shares, measured, unready)
    used = sum(share.used or 0 for share in measured.values())
    value = MetricValueStatus(average_value=format_resource(name, ceil(used / len(measured))))
    what = f"{name} resource"
    if target.average_utilization is not None:
        desired = sum(share.target for share in measured.values()) or 1.0
        percent = int(used / desired * target.average_utilization)
        value = MetricValueStatus(average_utilization=percent, average_value=value.average_value)
        what = f"{name} resource utilization (percentage of request)"
    return ReplicaProposal(
        replicas, MetricStatus(type="Resource", resource=ResourceMetricStatus(name, value)), what
    )


def _unavailable(name: str, why: str) -> MetricUnavailable:
    message = f"the HPA was unable to compute the replica count: failed to get {name} metric: {why}"
    return MetricUnavailable("FailedGetResourceMetric", message)


def _is_measurable(pod: Pod, resource: str) -> bool:
    # The CPU usage of a starting pod does not predict its later usage.
    return pod.status.phase != "Pending" and (resource != CPU or is_pod_ready(pod))


def _pod_metric(metric: MetricSpec, pod: Pod, usage: PodUsage) -> _PodMetric:
    assert metric.resource is not None
    name, target = metric.resource.name, metric.resource.target
    used = usage.get(pod.metadata.name, {}).get(name)
    if target.average_utilization is None:
        desired = parse_resource(name, target.average_value or 0)
        return _PodMetric(used, desired, desired)
    request = 0
    for container in pod.spec.containers:
        asked = container_request(container.resources).get(name)
        if not asked:
            pod_name = pod.metadata.name
            raise _unavailable(
                name, f"missing request for {name} in container {container.name} of Pod {pod_name}"
            )
        request += asked
    wanted_share = request * target.average_utilization / 100
    return _PodMetric(used, wanted_share, max(wanted_share, request))


def _replicas(
    current: int,
    shares: Mapping[str, _PodMetric],
    measured: Mapping[str, _PodMetric],
    unready: set[str],
) -> int:
    ratio = _ratio([(share.used or 0, share.target) for share in measured.values()])
    missing = shares.keys() - measured.keys() - unready
    starting = unready if ratio > 1 else set()
    if not missing and not starting:
        return current if abs(1 - ratio) <= TOLERANCE else ceil(ratio * len(measured))
    counted = [(float(share.used or 0), share.target) for share in measured.values()]
    for pod in missing:
        counted.append((shares[pod].assumed if ratio < 1 else 0.0, shares[pod].target))
    counted += [(0.0, shares[pod].target) for pod in starting]
    corrected = _ratio(counted)
    turned = (ratio < 1 < corrected) or (corrected < 1 < ratio)
    if abs(1 - corrected) <= TOLERANCE or turned:
        return current
    proposed = ceil(corrected * len(counted))
    return current if (proposed < current) != (corrected < 1) and proposed != current else proposed


def _ratio(counted: Sequence[tuple[float, float]]) -> float:
    desired = sum(target for _, target in counted)
    return sum(used for used, _ in counted) / desired if desired else 1.0
