"""Disruption controller: how many of the pods of a PodDisruptionBudget may be evicted now.

Evictions depend on the status that it writes. Percentages refer to the expected number of pods: the
sum of the sizes of their ReplicaSets, plus one for each pod without a known controller.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gangline.api.core.core import PodDisruptionBudget, PodDisruptionBudgetStatus
from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.conditions import FALSE, TRUE, set_condition
from gangline.api.meta.objects import Condition
from gangline.api.meta.selectors import selector_from_object
from gangline.api.resources import POD_DISRUPTION_BUDGETS, PODS
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    BY_NAMESPACE,
    ControllerContext,
    QueueLoop,
    complete_status,
    current_time,
    enqueue_changes,
    namespace_of,
    patch_status,
)
from gangline.local.controllers.replica_sets.plan import RAW_REPLICA_SETS, share_of

DELETION_TIMEOUT = timedelta(minutes=2)
"""An eviction that led to no deletion stops counting as a disruption after this time."""


def budget_status(
    budget: PodDisruptionBudget, pods: Sequence[Pod], sizes: Mapping[str, int], now: datetime
) -> PodDisruptionBudgetStatus:
    """Return the status that a budget should have.

    ``sizes`` gives the desired number of pods by uid of their controller, where it is known.
    """
    counted = [pod for pod in pods if pod.status.phase not in TERMINAL_PHASES]
    expected = _expected(counted, sizes)
    desired = _desired(budget, expected)
    present = {pod.metadata.name for pod in counted if pod.metadata.deletion_timestamp is None}
    evicted = {
        name: since
        for name, since in budget.status.disrupted_pods.items()
        if name in present and now - since < DELETION_TIMEOUT
    }
    retained = present - evicted.keys()
    healthy = sum(is_pod_ready(pod) and pod.metadata.name in retained for pod in counted)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    return PodDisruptionBudgetStatus(
        observed_generation=budget.metadata.generation,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disrupted_pods=evicted,
        conditions=set_condition(budget.status.conditions, _condition(budget, allowed), now),
    )


def _expected(pods: Sequence[Pod], sizes: Mapping[str, int]) -> int:
    owners = [pod.metadata.controller.uid if pod.metadata.controller else "" for pod in pods]
    return sum(sizes[uid] for uid in sizes.keys() & owners) + sum(o not in sizes for o in owners)


def _desired(budget: PodDisruptionBudget, expected: int) -> int:
    if budget.spec.max_unavailable is not None:
        return max(0, expected - share_of(budget.spec.max_unavailable, expected, up=True))
    if budget.spec.min_available is not None:
        return share_of(budget.spec.min_available, expected, up=True)
    return 0


def _condition(budget: PodDisruptionBudget, allowed: int) -> Condition:
    return Condition(
        type="DisruptionAllowed",
        status=TRUE if allowed else FALSE,
        reason="SufficientPods" if allowed else "InsufficientPods",
        observed_generation=budget.metadata.generation,
    )


class DisruptionController(QueueLoop):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informers, by_namespace = context.informers, {BY_NAMESPACE: namespace_of}
        self._budgets = informers.informer(POD_DISRUPTION_BUDGETS, indexes=by_namespace)
        self._pods = informers.informer(PODS, indexes=by_namespace)
        self._sets = context.informers.informer(RAW_REPLICA_SETS)
        self._queue = self._add_queue("budgets", self._reconcile, workers=1)
        self._budgets.add_listener(enqueue_changes(self._queue))
        self._pods.add_listener(self._pod_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        for budget in self._budgets.by_index(BY_NAMESPACE, pod.metadata.namespace):
            if selector_from_object(budget.spec.selector).matches(pod.metadata.labels):
                self._queue.add(object_key(budget))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        budget = self._budgets.get(key.namespace, key.name)
        if budget is None:
            return None
        selector = selector_from_object(budget.spec.selector)
        pods = self._pods.by_index(BY_NAMESPACE, key.namespace)
        selected = [pod for pod in pods if selector.matches(pod.metadata.labels)]
        sizes = {
            replica_set.metadata.uid: replica_set.desired_replicas
            for replica_set in self._sets.items()
        }
        status = budget_status(budget, selected, sizes, current_time())
        if status != budget.status:
            # The eviction subresource decrements the same status: the resourceVersion makes one of
            # two concurrent writes fail.
            body = complete_status(status)
            dropped = budget.status.disrupted_pods.keys() - status.disrupted_pods.keys()
            body["disruptedPods"] = dict.fromkeys(dropped) | (body["disruptedPods"] or {})
            for condition in body["conditions"]:
                condition.setdefault("message", "")  # clients require it
            version = {"resourceVersion": budget.metadata.resource_version}
            patch = {"metadata": version, "status": body}
            await patch_status(self._client, POD_DISRUPTION_BUDGETS, budget, patch)
        return 30.0 if status.disrupted_pods else None
