"""Scores of eligible nodes: balance, PreferNoSchedule taints."""

from collections import Counter

import numpy as np
import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.plugins.scores import ScoreWeights, balance_score
from gangline.scheduler.types import PlacementConstraints, PodKey, TaintInfo, TolerationInfo
from unit.scheduler.builders import cluster, decide, gang, node, pod

EVEN = ScoreWeights(packing=0, balance=1)


@pytest.mark.parametrize(
    ("left", "there", "expected"),
    [
        pytest.param([5, 5], [10, 10], 1.0, id="half of each"),
        pytest.param([10, 0], [10, 10], 0.5, id="all of one and nothing of the other"),
        pytest.param([5, 25], [10, 100], 0.875, id="a half and three quarters"),
        pytest.param([5, 0], [10, 0], 1.0, id="none of one is there"),
        pytest.param([-5, 0], [10, 10], 1.0, id="more is promised than there is"),
        pytest.param([0, 0], [0, 0], 1.0, id="nothing is there"),
        pytest.param([0, 5, 10], [10, 10, 10], 0.5918, id="three resources"),
    ],
)
def test_evenness_is_how_far_the_used_parts_lie_apart(
    left: list[int], there: list[int], expected: float
) -> None:
    found = balance_score(np.array([left]).T, np.array([there]).T)
    assert found.tolist() == pytest.approx([expected], abs=1e-4)


@pytest.mark.parametrize(
    ("resource", "weight"),
    [
        ("cpu", 2),
        ("memory", 3),
        ("nvidia.com/gpu", 7),
        ("example.com/fpga", 4),
        ("kubernetes.io/batch-cpu", 0),
        ("pods", 0),
        ("hugepages-2Mi", 0),
    ],
)
def test_packing_weight_of_a_resource_is_that_of_its_kind_unless_it_has_its_own(
    resource: str, weight: float
) -> None:
    weights = ScoreWeights(cpu=2, memory=3, device=7, resources=(("example.com/fpga", 4),))
    assert weights.resource_weight(resource) == weight


def half_used(weights: ScoreWeights) -> SchedulerCache:
    """On one node CPU is in use, on the other memory."""
    return cluster(
        *(node(name, cpu=8, memory=8, gpu=4) for name in ("cpu-used", "memory-used")),
        pod("a", cpu=4, on="cpu-used"),
        pod("b", cpu=0, memory=4, on="memory-used"),
        weights=weights,
    )


def where(state: SchedulerCache) -> Counter[str]:
    return Counter(str(binding.node) for binding in decide(state).bindings)


@pytest.mark.parametrize(("cpu", "memory", "goes_to"), [(3, 1, "memory-used"), (1, 3, "cpu-used")])
def test_pod_is_placed_where_it_balances_usage(cpu: int, memory: int, goes_to: str) -> None:
    state = half_used(EVEN)
    state.set_pod(pod("new", cpu=cpu, memory=memory))
    assert where(state) == {goes_to: 1}


def test_each_pod_of_a_gang_is_weighed_with_those_before_it() -> None:
    nodes = [node(name, cpu=8, memory=8) for name in ("a", "b")]
    state = cluster(*nodes, *gang("g", 2, cpu=4), weights=EVEN)
    # Both would fit on one node, whose memory would then be unusable.
    assert where(state) == {"a": 1, "b": 1}
    assert where(cluster(*nodes, *gang("g", 2, cpu=4))) == {"a": 2}


def test_requested_devices_are_part_of_the_balance() -> None:
    state = cluster(
        *(node(name, cpu=8, memory=8, gpu=8) for name in ("devices-used", "free")),
        pod("a", cpu=0, gpu=4, on="devices-used"),
        pod("new", cpu=4, memory=4, gpu=1),
        weights=EVEN,
    )
    assert where(state) == {"devices-used": 1}


def test_balance_counts_for_nothing_unless_it_is_asked_for() -> None:
    state = half_used(ScoreWeights())
    state.set_pod(pod("new", cpu=1))
    assert not state.nodes.demand(state.pods[PodKey("d/new")].shape.request).balanced
    assert where(state) == {"cpu-used": 1}


WISH = TaintInfo("old", "", "PreferNoSchedule")


def marked(weights: ScoreWeights) -> SchedulerCache:
    nodes = node("a-marked", cpu=4, taints=(WISH,)), node("plain", cpu=4)
    return cluster(*nodes, weights=weights)


def test_a_gang_avoids_nodes_that_would_rather_have_no_pods_as_far_as_it_can() -> None:
    state = cluster(
        node("a-marked", cpu=4, taints=(WISH,)), node("plain", cpu=4), *gang("g", 3, cpu=2)
    )
    assert where(state) == {"plain": 2, "a-marked": 1}


@pytest.mark.parametrize(
    ("weights", "tolerated", "goes_to"),
    [
        pytest.param(ScoreWeights(), False, "plain", id="usual"),
        pytest.param(ScoreWeights(discouraged=0), False, "a-marked", id="it counts for nothing"),
        pytest.param(ScoreWeights(), True, "a-marked", id="the pod tolerates it"),
    ],
)
def test_a_taint_that_is_a_wish_counts_by_its_weight(
    weights: ScoreWeights, tolerated: bool, goes_to: str
) -> None:
    state = marked(weights)
    tolerations = (TolerationInfo("old", "Exists"),) if tolerated else ()
    state.set_pod(pod("new", constraints=PlacementConstraints(tolerations=tolerations)))
    assert where(state) == {goes_to: 1}


def test_fewer_such_taints_are_better_and_changes_are_seen() -> None:
    state = marked(ScoreWeights())
    twice = (WISH, TaintInfo("older", "", "PreferNoSchedule"))
    state.set_node(node("plain", cpu=4, taints=twice))
    state.set_pod(pod("new"))
    assert where(state) == {"a-marked": 1}
    state.set_node(node("plain", cpu=4))
    assert where(state) == {"plain": 1}
