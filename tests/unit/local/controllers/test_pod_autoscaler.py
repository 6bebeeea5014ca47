"""Autoscaler: replicas from metrics, limited by stabilization, policies and bounds."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.cluster.autoscaling import (
    HorizontalPodAutoscaler,
    HorizontalPodAutoscalerBehavior,
    HorizontalPodAutoscalerSpec,
    HPAScalingPolicy,
    HPAScalingRules,
    MetricSpec,
    MetricStatus,
    MetricTarget,
    ResourceMetricSource,
)
from gangline.api.core.container import Container, ResourceRequirements
from gangline.api.core.pod import PodSpec
from gangline.api.meta.conditions import find_condition
from gangline.local.controllers.pod_autoscaler import (
    MetricUnavailable,
    ReplicaProposal,
    ScalingDecision,
    ScalingHistory,
    decide_scaling,
    propose_replicas,
)
from unit.local.controllers.builders import NOW, a_pod

CPU = PodSpec(
    node_name="n",
    containers=[Container(name="c", resources=ResourceRequirements(requests={"cpu": "1"}))],
)


def share(percent: int) -> MetricSpec:
    target = MetricTarget(type="Utilization", average_utilization=percent)
    return MetricSpec(type="Resource", resource=ResourceMetricSource("cpu", target))


def proposed(percent: int, *used: int | None, ready: tuple[int, ...] = ()) -> int:
    """The proposal for pods with a request of one CPU and this usage (thousandths)."""
    numbers = range(len(used))
    pods = [a_pod(f"p{n}", spec=CPU, ready=not ready or n in ready) for n in numbers]
    usage = {f"p{n}": {"cpu": u} for n, u in enumerate(used) if u is not None}
    return propose_replicas(share(percent), len(used), pods, usage).replicas


@pytest.mark.parametrize(
    ("used", "replicas"),
    [
        ((500, 500), 2),
        ((1000, 1000), 4),
        ((1000, 500), 3),
        ((250, 250), 1),
        ((545, 545), 2),  # within a tenth
        ((560, 560), 3),
        ((455, 455), 2),
        ((0, 0), 0),
    ],
)
def test_replicas_follow_the_ratio_of_use_and_target(used: tuple[int, ...], replicas: int):
    assert proposed(50, *used) == replicas


def test_a_pod_without_measurements_counts_against_the_change():
    assert proposed(50, 1000, None) == 2  # as if it did nothing: 50 % on average
    assert proposed(50, 100, None) == 2  # as if it used all: 55 %, within a tenth


def test_pods_that_start_do_not_drive_replicas_up():
    assert proposed(50, 1000, 1000, 0, 0, ready=(0, 1)) == 4


def test_an_average_amount_is_divided_by_the_pods():
    target = MetricTarget(type="AverageValue", average_value="100Mi")
    metric = MetricSpec(type="Resource", resource=ResourceMetricSource("memory", target))
    usage = {"p": {"memory": 250 << 20}}
    proposal = propose_replicas(metric, 1, [a_pod("p")], usage)
    assert proposal.replicas == 3
    assert proposal.status.resource is not None
    assert proposal.status.resource.current.average_value == "250Mi"


@pytest.mark.parametrize(
    ("metric", "pods", "usage", "reason", "message"),
    [
        (MetricSpec(type="Pods"), [a_pod("p")], {}, "InvalidMetricSourceType", "type Pods"),
        (share(50), [], {}, "FailedGetResourceMetric", "no pods returned by selector"),
        (share(50), [a_pod("p", spec=CPU)], {}, "FailedGetResourceMetric", "did not receive"),
        (
            share(50),
            [a_pod("p", spec=PodSpec(containers=[Container(name="c")]))],
            {"p": {"cpu": 1}},
            "FailedGetResourceMetric",
            "missing request for cpu in container c of Pod p",
        ),
    ],
)
def test_missing_metric_has_a_reason(
    metric: MetricSpec, pods: list[Any], usage: dict[str, Any], reason: str, message: str
):
    with pytest.raises(MetricUnavailable) as error:
        propose_replicas(metric, 1, pods, usage)
    assert error.value.reason == reason
    assert message in error.value.message


def a_scaler(
    low: int = 1, high: int = 100, behavior: HorizontalPodAutoscalerBehavior | None = None
) -> HorizontalPodAutoscaler:
    return HorizontalPodAutoscaler(
        spec=HorizontalPodAutoscalerSpec(min_replicas=low, max_replicas=high, behavior=behavior)
    )


def wants(replicas: int) -> ReplicaProposal:
    return ReplicaProposal(replicas, MetricStatus(type="Resource"), "cpu resource")


def condition(decision: ScalingDecision, type_: str) -> tuple[str, str]:
    condition = find_condition(decision.status.conditions, type_)
    assert condition is not None
    return condition.status, condition.reason


def test_the_largest_proposal_counts():
    assert decide_scaling(a_scaler(), 2, [wants(3), wants(4)], ScalingHistory(), NOW).replicas == 4


@pytest.mark.parametrize(("current", "replicas"), [(1, 5), (2, 6), (10, 20)])
def test_replicas_at_most_double_or_grow_by_four_in_a_period(current: int, replicas: int):
    decision = decide_scaling(a_scaler(), current, [wants(90)], ScalingHistory(), NOW)
    assert decision.replicas == replicas
    assert condition(decision, "ScalingLimited") == ("True", "ScaleUpLimit")


def test_scale_up_counts_against_the_period_of_its_policy():
    first = decide_scaling(a_scaler(), 1, [wants(90)], ScalingHistory(), NOW)
    second = decide_scaling(a_scaler(), 5, [wants(90)], first.history, NOW + timedelta(seconds=5))
    later = decide_scaling(a_scaler(), 5, [wants(90)], second.history, NOW + timedelta(seconds=16))
    assert (first.replicas, second.replicas, later.replicas) == (5, 5, 10)


def test_replicas_go_down_only_to_the_highest_proposal_of_five_minutes():
    scaler = a_scaler()
    first = decide_scaling(scaler, 8, [wants(6)], ScalingHistory(), NOW)
    assert first.replicas == 8
    assert condition(first, "AbleToScale") == ("True", "ScaleDownStabilized")
    second = decide_scaling(scaler, 8, [wants(2)], first.history, NOW + timedelta(seconds=299))
    third = decide_scaling(scaler, 8, [wants(2)], second.history, NOW + timedelta(seconds=301))
    last = decide_scaling(scaler, 8, [wants(2)], third.history, NOW + timedelta(seconds=600))
    assert (second.replicas, third.replicas, last.replicas) == (8, 2, 2)


def test_replicas_stay_within_bounds_with_a_condition():
    high = decide_scaling(a_scaler(high=3), 2, [wants(9)], ScalingHistory(), NOW)
    assert high.replicas == 3
    assert condition(high, "ScalingLimited") == ("True", "TooManyReplicas")
    assert decide_scaling(a_scaler(low=4), 2, [], ScalingHistory(), NOW).replicas == 4
    assert decide_scaling(a_scaler(high=4), 9, [], ScalingHistory(), NOW).replicas == 4


def test_a_target_of_zero_replicas_is_left_alone():
    decision = decide_scaling(a_scaler(), 0, [wants(9)], ScalingHistory(), NOW)
    assert decision.replicas == 0
    assert condition(decision, "ScalingActive") == ("False", "ScalingDisabled")


def test_a_failed_measure_keeps_replicas_from_going_down_but_not_up():
    broken = MetricUnavailable("FailedGetResourceMetric", "away")
    down = decide_scaling(a_scaler(), 5, [wants(1), broken], ScalingHistory(), NOW)
    assert down.replicas == 5
    assert condition(down, "ScalingActive") == ("False", "FailedGetResourceMetric")
    assert decide_scaling(a_scaler(), 5, [wants(6), broken], ScalingHistory(), NOW).replicas == 6


def test_behavior_may_forbid_a_direction_and_set_the_pace():
    slow = HPAScalingRules(
        policies=[HPAScalingPolicy("Pods", 1, 60)], stabilization_window_seconds=0
    )
    behavior = HorizontalPodAutoscalerBehavior(
        scale_up=HPAScalingRules(select_policy="Disabled"), scale_down=slow
    )
    scaler = a_scaler(behavior=behavior)
    assert decide_scaling(scaler, 5, [wants(9)], ScalingHistory(), NOW).replicas == 5
    assert decide_scaling(scaler, 5, [wants(1)], ScalingHistory(), NOW).replicas == 4


@given(
    st.integers(1, 50), st.lists(st.integers(0, 200), min_size=1, max_size=12), st.integers(1, 5),
    st.integers(5, 60),
)  # fmt: skip
def test_replicas_stay_within_bounds_for_every_recommendation(
    current: int, proposals: list[int], low: int, high: int
):
    scaler, history, at = a_scaler(low, high), ScalingHistory(), NOW
    for replicas in proposals:
        decision = decide_scaling(scaler, current, [wants(replicas)], history, at)
        assert low <= decision.replicas <= high
        current, history, at = decision.replicas, decision.history, at + timedelta(seconds=15)
