"""Devices are left over where the usual pods can use them, if that is asked for."""

import numpy as np
import pytest

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.config.volcano import read_configuration
from gangline.scheduler.plugins.scores import Popularity, ScoreWeights, common_pods
from gangline.scheduler.simulate.cluster import uniform_cluster
from gangline.scheduler.simulate.engine import Simulation
from gangline.scheduler.simulate.report import result_rows, summarize
from gangline.scheduler.simulate.trace import TraceJob, pod_request
from gangline.scheduler.types.types import PodKey
from unit.scheduler.builders import GPU, decide, gang, node, pod, request

COLUMNS = {"cpu": 0, GPU: 1}


@pytest.mark.parametrize(
    ("cpu", "gpus", "unused"),
    [
        pytest.param(8, 8, 0, id="a pod of 4 with 4 processors fits twice"),
        pytest.param(8, 6, 2, id="two devices are too few for another"),
        pytest.param(4, 8, 4, id="there are too few processors for another"),
        pytest.param(0, 8, 8, id="there are no processors"),
        pytest.param(-4, -2, 0, id="more is promised than there is"),
    ],
)
def test_devices_that_the_usual_pod_cannot_use_are_a_fragment(
    cpu: int, gpus: int, unused: int
) -> None:
    usual = common_pods({(("cpu", 4), (GPU, 4)): 1.0}, COLUMNS)
    assert usual is not None
    assert usual.fragments(np.array([[cpu], [gpus]])).tolist() == [unused]


def test_the_usual_pods_are_those_that_are_frequent_and_ask_for_devices() -> None:
    seen = Popularity()
    for shape, count in ((request(cpu=1, gpu=1), 60), (request(gpu=8), 38), (request(gpu=3), 2)):
        for _ in range(count):
            seen.note(shape, 1)
    seen.note(request(cpu=4), 1)
    assert seen.shares() == {(("cpu", 1000), (GPU, 1)): 0.5, ((GPU, 8),): 0.5}
    for _ in range(60):
        seen.note(request(cpu=1, gpu=1), -1)
    assert seen.shares() == {((GPU, 8),): 1.0}


def two_nodes(weights: ScoreWeights) -> SchedulerCache:
    """Most pods ask for four devices and eight processors; the fuller node has just that left."""
    state = SchedulerCache(weights)
    for each in (node("fuller", cpu=16, gpu=8), node("other", cpu=16, gpu=8)):
        state.set_node(each)
    state.set_pod(pod("a", cpu=8, gpu=4, on="fuller"))
    state.set_pod(pod("b", cpu=7, gpu=3, on="other"))
    for index in range(20):
        state.set_pod(pod(f"usual-{index}", cpu=8, gpu=4, age=9))
    state.set_pod(pod("small", cpu=1, gpu=1))
    return state


def place_of(state: SchedulerCache, name: str) -> str:
    return next(b.node for b in decide(state).bindings if b.pod == PodKey(f"d/{name}"))


@pytest.mark.parametrize(("weight", "goes_to"), [(0, "fuller"), (4, "other")])
def test_a_small_pod_goes_where_it_leaves_over_what_the_usual_pods_need(
    weight: float, goes_to: str
) -> None:
    assert place_of(two_nodes(ScoreWeights(fragments=weight)), "small") == goes_to


def test_scores_follow_when_other_pods_become_the_usual_ones() -> None:
    state = two_nodes(ScoreWeights(fragments=4))
    assert place_of(state, "small") == "other"
    for index in range(20):
        state.remove_pod(PodKey(f"d/usual-{index}"))
        state.set_pod(pod(f"tiny-{index}", cpu=0.1, gpu=1, age=9))
    assert place_of(state, "small") == "fuller"


def test_what_is_left_over_can_be_weighed_by_configuration() -> None:
    text = "tiers: [{plugins: [{name: binpack, arguments: {binpack.fragments: 3}}]}]"
    assert read_configuration(text).weights.fragments == 3
    assert ScoreWeights().fragments == 0


def test_gangs_are_placed_whole_with_fragments_weighed() -> None:
    state = two_nodes(ScoreWeights(fragments=4))
    for each in gang("more", 3, cpu=1, gpu=1):
        state.set_pod(each) if "worker" in each.key else state.set_group(each)  # type: ignore[arg-type]
    bound = [b for b in decide(state).bindings if b.group]
    assert len(bound) in {0, 3}


def test_a_simulation_says_how_much_was_left_over_for_nobody() -> None:
    cluster = uniform_cluster(1, 8, "0", 8)
    jobs = [
        TraceJob("greedy", 0, 100, 1, pod_request(8, 0, 2), 1),
        TraceJob("usual", 1, 100, 1, pod_request(1, 0, 2), 1),
    ]
    found = summarize(Simulation(cluster, jobs).run(), cluster)
    assert found.fragmented == 1.0
    assert ("free devices of no use to the usual pod", "100.0%") in result_rows(found)
