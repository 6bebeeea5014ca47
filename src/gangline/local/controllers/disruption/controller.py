"""Disruption controller: updates the status of PodDisruptionBudgets, which evictions depend on."""

from datetime import datetime

import msgspec

from gangline.api.core.core import PodDisruptionBudget
from gangline.api.core.pod import Pod
from gangline.api.meta.selectors import selector_from_object
from gangline.api.resources import POD_DISRUPTION_BUDGETS, PODS
from gangline.kube.client.client import PatchKind
from gangline.kube.controller.controller import (
    Controller,
    ReconcileDone,
    ReconcileResult,
    RequeueAfter,
)
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import BY_NAMESPACE, ControllerContext, current_time
from gangline.local.controllers.disruption import plan
from gangline.local.controllers.replica_sets.plan import RAW_REPLICA_SETS


class DisruptionController:
    """Watches budgets, pods and ReplicaSets; writes the status of budgets."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._budgets = context.informers.informer(
            POD_DISRUPTION_BUDGETS, indexes={BY_NAMESPACE: lambda one: [one.metadata.namespace]}
        )
        self._pods = context.informers.informer(
            PODS, indexes={BY_NAMESPACE: lambda pod: [pod.metadata.namespace]}
        )
        self._sets = context.informers.informer(RAW_REPLICA_SETS)
        self._controller: Controller[ObjectKey] = Controller("budgets", self._reconcile, workers=1)
        self._budgets.add_listener(self._budget_changed)
        self._pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _budget_changed(
        self, _: PodDisruptionBudget | None, new: PodDisruptionBudget | None
    ) -> None:
        if new is not None:
            self._controller.queue.add(object_key(new))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        for budget in self._budgets.by_index(BY_NAMESPACE, pod.metadata.namespace):
            if selector_from_object(budget.spec.selector).matches(pod.metadata.labels):
                self._controller.queue.add(object_key(budget))

    async def _reconcile(self, key: ObjectKey) -> ReconcileResult:
        budget = self._budgets.get(key.namespace, key.name)
        if budget is None:
            return ReconcileDone()
        selector = selector_from_object(budget.spec.selector)
        pods = self._pods.by_index(BY_NAMESPACE, key.namespace)
        selected = [pod for pod in pods if selector.matches(pod.metadata.labels)]
        sizes = {found.metadata.uid: found.desired_replicas for found in self._sets.items()}
        status = plan.budget_status(budget, selected, sizes, current_time())
        if status != budget.status:
            # The eviction subresource decrements the same status: the resourceVersion makes one of
            # two concurrent writes fail.
            wire = msgspec.to_builtins(status)
            dropped: dict[str, datetime | None] = dict.fromkeys(
                budget.status.disrupted_pods.keys() - status.disrupted_pods.keys()
            )
            zeros = dict.fromkeys(
                ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"), 0
            )
            evicted = {**wire.pop("disruptedPods", {}), **dropped}
            patch = {
                "metadata": {"resourceVersion": budget.metadata.resource_version},
                "status": {**zeros, **wire, "disruptedPods": evicted},
            }
            await self._client.patch(
                POD_DISRUPTION_BUDGETS,
                key.name,
                patch,
                key.namespace,
                kind=PatchKind.MERGE,
                subresource="status",
            )
        return RequeueAfter(30.0) if status.disrupted_pods else ReconcileDone()
