"""Evictions: deletions of pods, subject to disruption budgets."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from gangline.api.meta.objects import LabelSelector, StatusCause
from gangline.api.meta.selectors import SelectorError, selector_from_object
from gangline.local.apiserver.admission.node_restriction import restrict_node_write
from gangline.local.apiserver.core.errors import internal, not_found, too_many
from gangline.local.apiserver.core.metadata import format_timestamp
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json, ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.verbs.delete import DeletionRequest
from gangline.local.apiserver.verbs.write import WritePath

BUDGETS = ServedKind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
UNPROTECTED_PHASES = ("Pending", "Succeeded", "Failed")
"""Phases in which a pod is not available, so that no budget protects it."""


class EvictionHandler:
    """Evicts pods."""

    def __init__(self, store: ObjectStore, writer: WritePath) -> None:
        self._store = store
        self._writer = writer

    async def evict(self, request: ApiRequest, deletion: DeletionRequest) -> None:
        """Delete a pod if its budget allows a disruption.

        Raises:
            StatusError: 429, the budget does not allow it now; 404, the pod does not exist.
        """
        record = self._store.cache("pods.").latest(request.key)
        if record is None:
            raise not_found("pods", "", request.name)
        pod = read_json(record.body)
        # Before the budget is charged.
        restrict_node_write(request, pod, None)
        going = "deletionTimestamp" in pod["metadata"]
        if not going and pod.get("status", {}).get("phase") not in UNPROTECTED_PHASES:
            await self._charge_budget(request, pod, deletion.dry_run)
        if not deletion.dry_run and not going:
            await self._writer.update(request, add_disruption_condition)
        await self._writer.delete(request, deletion)

    async def _charge_budget(self, request: ApiRequest, pod: Json, dry_run: bool) -> None:
        budgets = self._budgets(request.namespace or "", pod["metadata"].get("labels") or {})
        if len(budgets) > 1:
            raise internal("This pod has more than one PodDisruptionBudget, which the eviction "
                           "subresource does not support.")  # fmt: skip
        for budget in budgets:
            check_budget(budget)
            if dry_run:
                return
            name = budget["metadata"]["name"]
            taking = ApiRequest(
                BUDGETS, "update", request.namespace, name, "status", {}, request.user
            )
            taking.user_agent = request.user_agent
            await self._writer.update(taking, lambda found: count_disruption(found, request.name))

    def _budgets(self, namespace: str, labels: dict[str, str]) -> list[Json]:
        cache = self._store.cache(BUDGETS.storage_name)
        found = [cache.latest(key) for key in cache.keys(namespace)]
        budgets = (read_json(record.body) for record in found if record is not None)
        return [
            budget for budget in budgets if budget_selects(budget["spec"].get("selector"), labels)
        ]


def budget_selects(selector: Any, labels: dict[str, str]) -> bool:
    """Return True if a budget's selector matches. A missing selector matches no pod."""
    if selector is None:
        return False
    try:
        return selector_from_object(msgspec.convert(selector, LabelSelector)).matches(labels)
    except (SelectorError, msgspec.ValidationError):
        return False


def check_budget(budget: Json) -> None:
    """Refuse an eviction that a budget does not allow.

    Raises:
        StatusError: 429.
    """
    status = budget.get("status") or {}
    name = budget["metadata"]["name"]
    generation = budget["metadata"].get("generation", 0)
    if (status.get("observedGeneration") or 0) < generation:
        text = f"The disruption budget {name} is still being processed by the server."
        cause = StatusCause("DisruptionBudget", text)
        raise too_many(
            "Cannot evict pod as it would violate the pod's disruption budget.", [cause], 10
        )
    if (status.get("disruptionsAllowed") or 0) <= 0:
        text = (
            f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods "
            f"and has {status.get('currentHealthy', 0)} currently"
        )
        raise too_many(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            [StatusCause("DisruptionBudget", text)],
        )


def count_disruption(budget: Json, pod: str) -> Json:
    """Return the budget after the eviction of one of its pods.

    Raises:
        StatusError: 429, another eviction used the budget meanwhile.
    """
    check_budget(budget)
    status = dict(budget.get("status") or {})
    status["disruptionsAllowed"] = status.get("disruptionsAllowed", 0) - 1
    at = format_timestamp(datetime.now(UTC))
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: at}
    return {**budget, "metadata": dict(budget["metadata"]), "status": status}


def add_disruption_condition(pod: Json) -> Json:
    status = dict(pod.get("status") or {})
    others = [c for c in status.get("conditions", []) if c.get("type") != "DisruptionTarget"]
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": format_timestamp(datetime.now(UTC)),
    }
    status["conditions"] = [*others, condition]
    return {**pod, "metadata": dict(pod["metadata"]), "status": status}
