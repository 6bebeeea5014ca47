"""Disruption controller: updates the status of PodDisruptionBudgets, which evictions depend on."""

from datetime import datetime

import msgspec

from gangline.api.core import PodDisruptionBudget
from gangline.api.pod import Pod
from gangline.api.resources import POD_DISRUPTION_BUDGETS, PODS
from gangline.api.selectors import from_object
from gangline.kube.client import PatchKind
from gangline.kube.controller import After, Controller, Done, Result
from gangline.kube.informer import Key, key_of
from gangline.local.controllers import budgets
from gangline.local.controllers.context import Context, now
from gangline.local.controllers.replicas import SETS

BY_NAMESPACE = "namespace"


class BudgetsLoop:
    """Watches budgets, pods and ReplicaSets; writes the status of budgets."""

    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._budgets = context.informers.informer(
            POD_DISRUPTION_BUDGETS, indexes={BY_NAMESPACE: lambda one: [one.metadata.namespace]}
        )
        self._pods = context.informers.informer(
            PODS, indexes={BY_NAMESPACE: lambda pod: [pod.metadata.namespace]}
        )
        self._sets = context.informers.informer(SETS)
        self._controller: Controller[Key] = Controller("budgets", self._reconcile, workers=1)
        self._budgets.add_listener(self._budget_changed)
        self._pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        await self._controller.run()

    def _budget_changed(
        self, _: PodDisruptionBudget | None, new: PodDisruptionBudget | None
    ) -> None:
        if new is not None:
            self._controller.queue.add(key_of(new))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        for budget in self._budgets.by_index(BY_NAMESPACE, pod.metadata.namespace):
            if from_object(budget.spec.selector).matches(pod.metadata.labels):
                self._controller.queue.add(key_of(budget))

    async def _reconcile(self, key: Key) -> Result:
        budget = self._budgets.get(key.namespace, key.name)
        if budget is None:
            return Done()
        selector = from_object(budget.spec.selector)
        pods = self._pods.by_index(BY_NAMESPACE, key.namespace)
        selected = [pod for pod in pods if selector.matches(pod.metadata.labels)]
        sizes = {found.metadata.uid: found.wanted for found in self._sets.items()}
        status = budgets.status(budget, selected, sizes, now())
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
        return After(30.0) if status.disrupted_pods else Done()
