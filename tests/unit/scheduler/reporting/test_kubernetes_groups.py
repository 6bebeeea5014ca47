"""Conditions of Kubernetes' PodGroups: scheduled once and for all, disrupted for a time."""

from datetime import UTC, datetime, timedelta

from gangline.api.meta.objects import Condition
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting.kubernetes_groups import (
    kubernetes_group_conditions,
    unwritten_conditions,
)
from gangline.scheduler.types import PendingReason
from unit.scheduler.builders import group, pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
GANG = group("g", 2)
PENDING = [pod(f"g-{index}") for index in range(2)]
PLACED = [pod(f"g-{index}", on="a") for index in range(2)]
WAITS = PendingReason(messages.NOT_ENOUGH_RESOURCES, "too large")


def written(conditions: list[Condition]) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in conditions}


def test_pending_group_states_why_and_a_placed_one_stays_scheduled() -> None:
    waits = kubernetes_group_conditions(GANG, PENDING, WAITS, "")
    first = unwritten_conditions([], waits, NOW)
    assert written(first) == {"PodGroupInitiallyScheduled": ("False", "Unschedulable")}
    assert unwritten_conditions(first, waits, LATER) == []
    placed = kubernetes_group_conditions(GANG, PLACED, None, "")
    second = unwritten_conditions(first, placed, LATER)
    assert written(second) == {"PodGroupInitiallyScheduled": ("True", "Scheduled")}
    assert second[0].last_transition_time == LATER
    assert unwritten_conditions(second, waits, LATER) == []


def test_refused_binding_is_an_error_of_the_scheduler() -> None:
    refused = PendingReason(messages.BINDING_REFUSED, "no")
    (condition,) = kubernetes_group_conditions(GANG, PENDING, refused, "")
    assert (condition.reason, condition.message) == ("SchedulerError", "no")


def test_group_is_a_disruption_target_until_it_has_its_nodes_again() -> None:
    ending = [pod(f"g-{index}", on="a", is_terminating=True) for index in range(2)]
    evicted = kubernetes_group_conditions(GANG, ending, None, "for d/urgent")
    first = unwritten_conditions([], evicted, NOW)
    assert written(first) == {"DisruptionTarget": ("True", "PreemptionByScheduler")}
    assert "d/urgent" in first[0].message
    assert kubernetes_group_conditions(GANG, [*PLACED[:1], *ending[1:]], None, "x") == []
    again = unwritten_conditions(first, kubernetes_group_conditions(GANG, PLACED, None, "x"), LATER)
    assert written(again)["DisruptionTarget"] == ("False", "Scheduled")
