"""ReplicaSets: pods to create and delete; disruption budgets."""

from datetime import timedelta
from typing import Any

import pytest

from gangline.api.core.core import PodDisruptionBudget, PodDisruptionBudgetSpec
from gangline.api.core.pod import PodSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.local.controllers import disruption as budgets
from gangline.local.controllers.replica_sets import plan as replicas
from gangline.local.controllers.replica_sets.plan import RawReplicaSet, RawReplicaSetSpec
from unit.local.controllers.builders import NOW, a_pod


def a_set(count: int, **spec: Any) -> RawReplicaSet:
    return RawReplicaSet(
        metadata=ObjectMeta(name="rs", uid="rs"), spec=RawReplicaSetSpec(replicas=count, **spec)
    )


def test_missing_pods_are_made_and_ended_ones_do_not_count() -> None:
    pods = [a_pod("a"), a_pod("b", phase="Failed"), a_pod("c", going=True)]
    plan = replicas.plan_replica_set(a_set(3), pods, NOW)
    assert (plan.create, plan.delete) == (2, ())
    assert plan.status.replicas == 1


def test_cheapest_pods_are_deleted_first() -> None:
    unbound = a_pod("unbound", ready=False, phase="Pending", spec=PodSpec())
    unready = a_pod("unready", ready=False)
    young = a_pod("young", ready_for=1)
    old = a_pod("old")
    cheap = a_pod("cheap", ready_for=600)
    cheap.metadata.annotations["controller.kubernetes.io/pod-deletion-cost"] = "-1"
    plan = replicas.plan_replica_set(a_set(1), [old, young, unready, unbound, cheap], NOW)
    assert [pod.metadata.name for pod in plan.delete] == ["unbound", "unready", "cheap", "young"]


def test_a_refused_creation_is_a_condition_until_pods_are_created() -> None:
    failed = replicas.with_failure(a_set(1).status, RuntimeError("exceeded quota"), NOW)
    [condition] = failed.conditions
    assert (condition.type, condition.reason) == ("ReplicaFailure", "FailedCreate")
    assert condition.message == "exceeded quota"
    assert replicas.with_failure(failed, None, NOW).conditions == []


def test_a_pod_is_available_only_after_its_time() -> None:
    plan = replicas.plan_replica_set(a_set(1, min_ready_seconds=10), [a_pod(ready_for=4)], NOW)
    assert (plan.status.ready_replicas, plan.status.available_replicas) == (1, 0)
    assert plan.requeue_at == NOW + timedelta(seconds=6)


def test_replica_set_in_deletion_creates_no_pods() -> None:
    going = RawReplicaSet(
        metadata=ObjectMeta(name="rs", deletion_timestamp=NOW), spec=RawReplicaSetSpec(replicas=3)
    )
    assert replicas.plan_replica_set(going, [], NOW).create == 0


def test_creations_per_pass_are_limited() -> None:
    assert replicas.plan_replica_set(a_set(1_000_000), [], NOW).create == replicas.BURST_REPLICAS


@pytest.mark.parametrize(
    ("spec", "healthy", "allowed"),
    [
        (PodDisruptionBudgetSpec(min_available=2), 3, 1),
        (PodDisruptionBudgetSpec(min_available=2), 2, 0),
        (PodDisruptionBudgetSpec(max_unavailable=1), 3, 1),
        (PodDisruptionBudgetSpec(max_unavailable=1), 2, 0),
        (PodDisruptionBudgetSpec(min_available="50%"), 3, 1),
        (PodDisruptionBudgetSpec(max_unavailable="100%"), 1, 1),
    ],
)
def test_budget_allows_evictions_down_to_the_desired_number(
    spec: PodDisruptionBudgetSpec, healthy: int, allowed: int
) -> None:
    pods = [a_pod(f"p{n}", ready=n < healthy, owner="rs") for n in range(3)]
    status = budgets.budget_status(PodDisruptionBudget(spec=spec), pods, {"rs": 3}, NOW)
    assert (status.expected_pods, status.current_healthy) == (3, healthy)
    assert status.disruptions_allowed == allowed
