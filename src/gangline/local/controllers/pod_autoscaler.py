"""HorizontalPodAutoscaler controller: sets the scale of a workload by the usage of its pods.

A metric proposes ``ceil(replicas * measured / target)``. A pod without a measurement counts against
the change: at its full target if the proposal is to scale down, at zero if it is to scale up. So
gaps in the measurements change little.

The largest proposal counts. The result is limited by the stabilization window, the scaling
policies, and min/max replicas, as in HPA v2. `propose_replicas` and `decide_scaling` (pure) compute
that; the controller reads the metrics API and writes the scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

import msgspec

from gangline.api.cluster.autoscaling import (
    CrossVersionObjectReference,
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerBehavior,
    HorizontalPodAutoscalerStatus,
    HPAScalingPolicy,
    HPAScalingRules,
    MetricSpec,
    MetricStatus,
    MetricValueStatus,
    ResourceMetricStatus,
)
from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.meta.conditions import set_condition
from gangline.api.meta.objects import Condition
from gangline.api.meta.selectors import SelectorError, parse_label_selector
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import (
    CPU,
    container_request,
    format_resource,
    parse_resource,
    parse_resources,
    sum_resources,
)
from gangline.api.resources import HORIZONTAL_POD_AUTOSCALERS, PODS
from gangline.kube.errors import ApiError
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    BY_NAMESPACE,
    ControllerContext,
    QueueLoop,
    complete_status,
    current_time,
    namespace_of,
)
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


DOWNSCALE_STABILIZATION_S = 300
_PERCENT = HPAScalingPolicy(type="Percent", value=100, period_seconds=15)
DEFAULT_SCALE_UP_RULES = HPAScalingRules(
    stabilization_window_seconds=0,
    select_policy="Max",
    policies=[HPAScalingPolicy(type="Pods", value=4, period_seconds=15), _PERCENT],
)
DEFAULT_SCALE_DOWN_RULES = HPAScalingRules(
    stabilization_window_seconds=DOWNSCALE_STABILIZATION_S, select_policy="Max", policies=[_PERCENT]
)
HISTORY_RETENTION = timedelta(hours=1)
"""Retention of the history: the longest stabilization window, and twice the longest policy period.
"""

TimedCount = tuple[datetime, int]


@dataclass(frozen=True, slots=True)
class ScalingHistory:
    """Recent proposals and changes; lost with the process, as in Kubernetes."""

    proposals: tuple[TimedCount, ...] = ()
    changes: tuple[TimedCount, ...] = ()
    """Changes of the number of replicas: positive for scaling up, negative for scaling down."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The number of replicas to set, its reason, and the status to write."""

    replicas: int
    reason: str
    status: HorizontalPodAutoscalerStatus
    history: ScalingHistory = field(default_factory=ScalingHistory)


class _Outcome(NamedTuple):
    replicas: int
    reason: str
    conditions: Sequence[Condition]
    history: ScalingHistory


def decide_scaling(
    scaler: HorizontalPodAutoscaler,
    current: int,
    measures: Sequence[ReplicaProposal | MetricUnavailable],
    history: ScalingHistory,
    now: datetime,
) -> ScalingDecision:
    """Compute the number of replicas of a target that has ``current`` now."""
    history = _recent(history, current, now)
    low, high = _bounds(scaler)
    if current == 0 and low > 0:
        why = "scaling is disabled since the replica count of the target is zero"
        disabled = _condition("ScalingActive", False, "ScalingDisabled", why)
        outcome = _Outcome(0, "", [disabled], history)
    elif current > high:
        outcome = _Outcome(high, "Current number of replicas above Spec.MaxReplicas", [], history)
    elif current < low:
        outcome = _Outcome(low, "Current number of replicas below Spec.MinReplicas", [], history)
    else:
        outcome = _from_metrics(scaler, current, measures, history, now)
    return _scaling_decision(scaler, current, measures, outcome, now)


def _from_metrics(
    scaler: HorizontalPodAutoscaler,
    current: int,
    measures: Sequence[ReplicaProposal | MetricUnavailable],
    history: ScalingHistory,
    now: datetime,
) -> _Outcome:
    valid = [measure for measure in measures if isinstance(measure, ReplicaProposal)]
    failed = [measure for measure in measures if isinstance(measure, MetricUnavailable)]
    largest = max(valid, key=lambda proposal: proposal.replicas, default=None)
    if largest is None or (failed and largest.replicas < current):
        error = failed[0] if failed else MetricUnavailable("FailedGetResourceMetric", "no measures")
        inactive = _condition("ScalingActive", False, error.reason, error.message)
        return _Outcome(current, "", [inactive], history)
    metric = largest.metric_description
    why = f"the HPA was able to successfully calculate a replica count from {metric}"
    active = _condition("ScalingActive", True, "ValidMetricFound", why)
    history = ScalingHistory((*history.proposals, (now, largest.replicas)), history.changes)
    stable, able = _stabilize(scaler, current, largest.replicas, history, now)
    desired, limited = _limit(scaler, current, stable, history, now)
    reason = f"{metric} above target" if desired > current else "All metrics below target"
    return _Outcome(desired, reason, [active, able, limited], history)


def _bounds(scaler: HorizontalPodAutoscaler) -> tuple[int, int]:
    low = scaler.spec.min_replicas
    return (1 if low is None else low), scaler.spec.max_replicas


def _recent(history: ScalingHistory, current: int, now: datetime) -> ScalingHistory:
    proposals = tuple(
        proposal for proposal in history.proposals if now - proposal[0] < HISTORY_RETENTION
    )
    changes = tuple(change for change in history.changes if now - change[0] < HISTORY_RETENTION)
    # The current size counts as a proposal: a new autoscaler does not scale down immediately.
    return ScalingHistory(proposals or ((now, current),), changes)


def _rules(scaler: HorizontalPodAutoscaler) -> tuple[HPAScalingRules, HPAScalingRules]:
    behavior = scaler.spec.behavior or HorizontalPodAutoscalerBehavior()
    return (
        behavior.scale_up or DEFAULT_SCALE_UP_RULES,
        behavior.scale_down or DEFAULT_SCALE_DOWN_RULES,
    )


def _stabilize(
    scaler: HorizontalPodAutoscaler,
    current: int,
    desired: int,
    history: ScalingHistory,
    now: datetime,
) -> tuple[int, Condition]:
    rules_up, rules_down = _rules(scaler)
    up = min(_within(history.proposals, rules_up.stabilization_window_seconds or 0, now),
             default=desired)  # fmt: skip
    down_s = rules_down.stabilization_window_seconds
    window_s = DOWNSCALE_STABILIZATION_S if down_s is None else down_s
    down = max(_within(history.proposals, window_s, now), default=desired)
    stable = min(max(current, min(up, desired)), max(down, desired))
    if stable == desired:
        message = "recommended size matches current size"
        return stable, _condition("AbleToScale", True, "ReadyForNewScale", message)
    direction, size = ("Down", "higher") if desired < stable else ("Up", "lower")
    chosen = "highest" if direction == "Down" else "lowest"
    message = f"recent recommendations were {size} than current one, applying the {chosen} "
    message += "recent recommendation"
    return stable, _condition("AbleToScale", True, f"Scale{direction}Stabilized", message)


def _within(moments: Sequence[TimedCount], seconds: int, now: datetime) -> list[int]:
    return [count for at, count in moments if now - at < timedelta(seconds=seconds)]


def _limit(
    scaler: HorizontalPodAutoscaler,
    current: int,
    desired: int,
    history: ScalingHistory,
    now: datetime,
) -> tuple[int, Condition]:
    low, high = _bounds(scaler)
    up, down = _rules(scaler)
    if desired > current:
        fast = max(current, _policy_limit(up, current, history, now, direction=1))
        if desired > min(fast, high):
            reason, problem = "ScaleUpLimit", "increasing faster than the maximum scale rate"
            if high <= fast:
                reason, problem = "TooManyReplicas", "more than the maximum replica count"
            return min(fast, high), _limited(reason, problem)
    elif desired < current:
        slow = min(current, _policy_limit(down, current, history, now, direction=-1))
        if desired < max(slow, low):
            reason, problem = "ScaleDownLimit", "decreasing faster than the maximum scale rate"
            if low >= slow:
                reason, problem = "TooFewReplicas", "less than the minimum replica count"
            return max(slow, low), _limited(reason, problem)
    message = "the desired count is within the acceptable range"
    return desired, _condition("ScalingLimited", False, "DesiredWithinRange", message)


def _limited(reason: str, problem: str) -> Condition:
    return _condition("ScalingLimited", True, reason, f"the desired replica count is {problem}")


def _policy_limit(
    rules: HPAScalingRules, current: int, history: ScalingHistory, now: datetime, *, direction: int
) -> int:
    """The furthest size that the policies allow now; ``direction`` is 1 for up, -1 for down."""
    if rules.select_policy == "Disabled":
        return current
    sizes = []
    for policy in rules.policies:
        start = current - sum(_within(history.changes, policy.period_seconds, now))
        share = start * (1 + direction * policy.value / 100)
        changed = ceil(share) if direction > 0 else int(share)
        sizes.append(start + direction * policy.value if policy.type == "Pods" else changed)
    highest = (direction > 0) != (rules.select_policy == "Min")
    return max(sizes, default=current) if highest else min(sizes, default=current)


def _scaling_decision(
    scaler: HorizontalPodAutoscaler,
    current: int,
    measures: Sequence[ReplicaProposal | MetricUnavailable],
    outcome: _Outcome,
    now: datetime,
) -> ScalingDecision:
    desired, changes = outcome.replicas, outcome.history.changes
    conditions, scaled_at = scaler.status.conditions, scaler.status.last_scale_time
    changed = list(outcome.conditions)
    if desired != current:
        changes, scaled_at = (*changes, (now, desired - current)), now
        message = f"the HPA controller was able to update the target scale to {desired}"
        changed = [item for item in changed if item.type != "AbleToScale"]
        changed.append(_condition("AbleToScale", True, "SucceededRescale", message))
    for condition in changed:
        conditions = set_condition(conditions, condition, now)
    status = HorizontalPodAutoscalerStatus(
        observed_generation=scaler.metadata.generation,
        last_scale_time=scaled_at,
        current_replicas=current,
        desired_replicas=desired,
        current_metrics=[
            measure.status for measure in measures if isinstance(measure, ReplicaProposal)
        ],
        conditions=conditions,
    )
    history = ScalingHistory(outcome.history.proposals, changes)
    return ScalingDecision(desired, outcome.reason, status, history)


def failed_status(
    scaler: HorizontalPodAutoscaler, reason: str, message: str, now: datetime
) -> HorizontalPodAutoscalerStatus:
    condition = _condition("AbleToScale", False, reason, message)
    conditions = set_condition(scaler.status.conditions, condition, now)
    return msgspec.structs.replace(scaler.status, conditions=conditions)


def _condition(type_: str, holds: bool, reason: str, message: str) -> Condition:
    return Condition(
        type=type_, status="True" if holds else "False", reason=reason, message=message
    )


PERIOD_S = 15.0
Json = dict[str, Any]


class ScaleTargetMissing(Exception):
    """The target does not exist, or has no scale subresource."""


class PodAutoscalerController(QueueLoop):
    """Reconciles every autoscaler each 15 seconds, and when its spec changes."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._scalers = context.informers.informer(HORIZONTAL_POD_AUTOSCALERS)
        self._pods = context.informers.informer(PODS, indexes={BY_NAMESPACE: namespace_of})
        self._histories: dict[ObjectKey, ScalingHistory] = {}
        self._queue = self._add_queue("autoscaler", self._reconcile, workers=2)
        self._scalers.add_listener(self._changed)

    def _changed(
        self, old: HorizontalPodAutoscaler | None, new: HorizontalPodAutoscaler | None
    ) -> None:
        if new is not None and (old is None or old.spec != new.spec):
            self._queue.add(object_key(new))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        scaler = self._scalers.get(key.namespace, key.name)
        if scaler is None:
            self._histories.pop(key, None)
            return None
        try:
            path = await self._scale_path(scaler.spec.scale_target_ref, key.namespace)
            scale = await self._client.request_json("GET", path)
            decision = await self._decide(scaler, scale, key)
            if decision.replicas != decision.status.current_replicas:
                await self._rescale(scaler, path, scale, decision)
        except (ScaleTargetMissing, ApiError) as error:
            message = f"the HPA controller was unable to get the target's current scale: {error}"
            status = failed_status(scaler, "FailedGetScale", message, current_time())
            await self._write(scaler, key, status)
            return PERIOD_S
        self._histories[key] = decision.history
        await self._write(scaler, key, decision.status)
        return PERIOD_S

    async def _decide(
        self, scaler: HorizontalPodAutoscaler, scale: Json, key: ObjectKey
    ) -> ScalingDecision:
        current = scale.get("spec", {}).get("replicas", 0)
        selector = scale.get("status", {}).get("selector", "")
        pods = self._selected(key.namespace or "", selector)
        usage = await self._usage(key.namespace or "", selector) if current else {}
        measures: list[ReplicaProposal | MetricUnavailable] = []
        for metric in scaler.spec.metrics:
            try:
                measures.append(propose_replicas(metric, current, pods, usage))
            except MetricUnavailable as error:
                measures.append(error)
        history = self._histories.get(key, ScalingHistory())
        return decide_scaling(scaler, current, measures, history, current_time())

    def _selected(self, namespace: str, selector: str) -> list[Pod]:
        if not selector:
            raise ScaleTargetMissing("the target's scale has no selector")
        try:
            chosen = parse_label_selector(selector)
        except SelectorError as error:
            raise ScaleTargetMissing(str(error)) from None
        pods = self._pods.by_index(BY_NAMESPACE, namespace)
        return [pod for pod in pods if chosen.matches(pod.metadata.labels)]

    async def _usage(self, namespace: str, selector: str) -> PodUsage:
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        metrics = await self._client.request_json("GET", path, params={"labelSelector": selector})
        return {
            pod["metadata"]["name"]: sum_resources(
                parse_resources(container["usage"]) for container in pod["containers"]
            )
            for pod in metrics["items"]
        }

    async def _scale_path(self, target: CrossVersionObjectReference, namespace: str | None) -> str:
        """Return the path of the target's scale, from the discovery document of its API version."""
        version = target.api_version or "v1"
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        document = await self._client.request_json("GET", prefix)
        entries = document.get("resources") or []
        names = {entry["name"] for entry in entries}
        for entry in entries:
            if entry["kind"] == target.kind and f"{entry['name']}/scale" in names:
                return f"{prefix}/namespaces/{namespace}/{entry['name']}/{target.name}/scale"
        raise ScaleTargetMissing(f"{target.kind} in {version} is not served, or has no scale")

    async def _rescale(
        self, scaler: HorizontalPodAutoscaler, path: str, scale: Json, decision: ScalingDecision
    ) -> None:
        body = {**scale, "spec": {"replicas": decision.replicas}}
        await self._client.request_json("PUT", path, body=body)
        message = f"New size: {decision.replicas}; reason: {decision.reason}"
        self._recorder.event(scaler, "Normal", "SuccessfulRescale", message)

    async def _write(self, scaler: HorizontalPodAutoscaler, key: ObjectKey, status: Any) -> None:
        if status == scaler.status:
            return
        await self._client.patch(
            HORIZONTAL_POD_AUTOSCALERS,
            key.name,
            {"status": complete_status(status)},
            key.namespace,
            subresource="status",
        )
