"""Disruption budgets: how many of the selected pods may be evicted now.

Percentages refer to the expected number of pods: the sum of the sizes of their ReplicaSets, plus
one for each pod without a known controller.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil

from gangline.api.core.core import PodDisruptionBudget, PodDisruptionBudgetStatus
from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.objects import Condition

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
    evicted = _still_evicted(budget, counted, now)
    healthy = sum(
        is_pod_ready(pod)
        and pod.metadata.deletion_timestamp is None
        and pod.metadata.name not in evicted
        for pod in counted
    )
    allowed = max(0, healthy - desired) if expected > 0 else 0
    return PodDisruptionBudgetStatus(
        observed_generation=budget.metadata.generation,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disrupted_pods=evicted,
        conditions=[_condition(budget, allowed, now)],
    )


def _expected(pods: Sequence[Pod], sizes: Mapping[str, int]) -> int:
    owners = {pod.metadata.controller.uid for pod in pods if pod.metadata.controller}
    known = {uid for uid in owners if uid in sizes}
    alone = sum(
        pod.metadata.controller is None or pod.metadata.controller.uid not in known for pod in pods
    )
    return sum(sizes[uid] for uid in known) + alone


def _desired(budget: PodDisruptionBudget, expected: int) -> int:
    if budget.spec.max_unavailable is not None:
        return max(0, expected - _count(budget.spec.max_unavailable, expected))
    if budget.spec.min_available is not None:
        return _count(budget.spec.min_available, expected)
    return 0


def _count(value: int | str, total: int) -> int:
    if isinstance(value, int):
        return value
    return ceil(float(value.rstrip("%")) * total / 100)


def _still_evicted(
    budget: PodDisruptionBudget, pods: Sequence[Pod], now: datetime
) -> dict[str, datetime]:
    there = {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None}
    return {
        name: since
        for name, since in budget.status.disrupted_pods.items()
        if name in there and now - since < DELETION_TIMEOUT
    }


def _condition(budget: PodDisruptionBudget, allowed: int, now: datetime) -> Condition:
    desired = "True" if allowed else "False"
    old = next((c for c in budget.status.conditions if c.type == "DisruptionAllowed"), None)
    changed = old is None or old.status != desired
    return Condition(
        type="DisruptionAllowed",
        status=desired,
        reason="SufficientPods" if allowed else "InsufficientPods",
        message="",
        observed_generation=budget.metadata.generation,
        last_transition_time=now if changed or old is None else old.last_transition_time,
    )
