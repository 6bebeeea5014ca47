"""HorizontalPodAutoscaler controller: reads pod metrics, writes the scale subresource."""

from typing import Any

from gangline.api.cluster.autoscaling import CrossVersionObjectReference, HorizontalPodAutoscaler
from gangline.api.core.pod import Pod
from gangline.api.meta.selectors import SelectorError, parse_label_selector
from gangline.api.resource_list import parse_resources, sum_resources
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
from gangline.local.controllers.pod_autoscaler import plan
from gangline.local.controllers.pod_autoscaler.plan import (
    MetricUnavailable,
    PodUsage,
    ReplicaProposal,
    ScalingDecision,
    ScalingHistory,
    propose_replicas,
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
            status = plan.failed_status(scaler, "FailedGetScale", message, current_time())
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
        return plan.decide_scaling(scaler, current, measures, history, current_time())

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
