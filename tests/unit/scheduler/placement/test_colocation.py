"""Colocation: a gang's pods with devices share nodes if the weight is set and it costs less."""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.config.volcano import read_configuration
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.types.types import (
    NodeInfo,
    NodeName,
    PlacementConstraints,
    PodInfo,
    PodKey,
    PreviousNodes,
)
from unit.scheduler.builders import cluster, gang, group, node, on_label, pod
from unit.scheduler.oracle.check import check_result

HOLES = {"h1": 4, "h2": 4, "w1": 8, "w2": 8, "w3": 8}
"""How many of eight devices are free on each node."""


def nodes(free: dict[str, int], labels: dict[str, str] | None = None) -> list[NodeInfo | PodInfo]:
    found: list[NodeInfo | PodInfo] = []
    for name, count in free.items():
        found.append(node(name, cpu=64, gpu=8, labels=labels))
        if count < 8:
            found.append(pod(f"busy-{name}", cpu=0, gpu=8 - count, on=name))
    return found


def where(state: SchedulerCache) -> Counter[str]:
    decision = run_cycle(state, 0.0)
    check_result(state, decision, 0.0)
    return Counter(str(binding.node) for binding in decision.bindings)


@pytest.mark.parametrize(
    ("weight", "size", "gpu", "expected"),
    [
        pytest.param(0, 4, 4, {"h1": 1, "h2": 1, "w1": 2}, id="packing fills what is left over"),
        pytest.param(2, 4, 4, {"w1": 2, "w2": 2}, id="two nodes are worth a whole one"),
        pytest.param(1, 4, 4, {"h1": 1, "h2": 1, "w1": 2}, id="equally dear: packing"),
        pytest.param(2, 2, 4, {"w1": 2}, id="one node for all"),
        pytest.param(9, 3, 4, {"w1": 2, "h1": 1}, id="the rest goes where it fits best"),
        pytest.param(9, 2, 2, {"h1": 2}, id="what is left over will do"),
        pytest.param(9, 8, 4, {"h1": 1, "h2": 1, "w1": 2, "w2": 2, "w3": 2}, id="there is no way"),
    ],
)
def test_number_of_nodes_is_weighed_against_unused_nodes(
    weight: float, size: int, gpu: int, expected: dict[str, int]
) -> None:
    state = cluster(
        *nodes(HOLES), *gang("g", size, gpu=gpu), weights=ScoreWeights(fewer_nodes=weight)
    )
    assert where(state) == expected


TOGETHER = ScoreWeights(fewer_nodes=9)


def test_pods_without_devices_go_as_ever() -> None:
    pods = [
        pod("g-0", cpu=4, group="g"),
        *(pod(f"g-{n}", gpu=4, group="g") for n in (1, 2)),
    ]
    there = [*nodes({"h1": 4, "h2": 4, "w1": 8}), node("c1", cpu=8)]
    assert where(cluster(*there, group("g", 3), *pods, weights=TOGETHER)) == {"w1": 2, "c1": 1}


def test_constraints_hold_and_places_that_are_kept_count_for_more() -> None:
    there = [*nodes({"h1": 4, "h2": 4}, {"zone": "a"}), *nodes({"w1": 8})]
    kept_to = on_label(zone="a")
    fenced = gang("g", 2, gpu=4, constraints=kept_to)
    assert where(cluster(*there, *fenced, weights=TOGETHER)) == {"h1": 1, "h2": 1}
    places = ((PodKey("d/g-worker-0"), NodeName("h1")), (PodKey("d/g-worker-1"), NodeName("h2")))
    pods = [each for each in gang("g", 2, gpu=4) if isinstance(each, PodInfo)]
    back = group("g", 2, previous_nodes=PreviousNodes(60.0, places))
    assert where(cluster(*there, back, *pods, weights=TOGETHER)) == {"h1": 1, "h2": 1}


def test_it_is_asked_for_in_the_configuration() -> None:
    text = "tiers: [{plugins: [{name: binpack, arguments: {binpack.together: 2}}]}]"
    assert read_configuration(text).weights == ScoreWeights(fewer_nodes=2)


LAW = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@LAW
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(2, 64)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_as_many_start_as_by_packing_and_on_no_more_nodes(
    free: list[tuple[int, int]], asked: list[tuple[int, int]], random: Random
) -> None:
    """The oracle checks each result, too."""
    there: list[NodeInfo | PodInfo] = []
    for index, (count, cpu) in enumerate(free):
        there.append(node(f"n{index}", cpu=cpu, gpu=8))
        there.append(pod(f"busy-{index}", cpu=0, gpu=8 - count, on=f"n{index}"))
    pods = [
        pod(f"g-{index}", cpu=cpu, gpu=gpus, group="g", constraints=PlacementConstraints())
        for index, (gpus, cpu) in enumerate(asked)
    ]
    things = [*there, group("g", len(pods)), *pods]
    found, packed = where(cluster(*things, weights=TOGETHER)), where(cluster(*things))
    assert found.total() == packed.total()
    random.shuffle(things)
    assert where(cluster(*things, weights=TOGETHER)) == found
    if all(gpus for gpus, _ in asked):
        assert len(found) <= len(packed)
