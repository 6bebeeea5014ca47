"""Colocation: a gang's pods with devices share nodes if the weight is set and it costs less."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_stats import MODEL_LABELS
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.types import (
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
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


ANY_MODEL = ScoreWeights(same_device_model=0)


def of(model: str, name: str, gpu: int = 8, label: str = MODEL_LABELS[0]) -> NodeInfo:
    return node(name, cpu=64, gpu=gpu, labels={label: model} if model else {})


@pytest.mark.parametrize("label", MODEL_LABELS)
@pytest.mark.parametrize(
    ("weights", "expected"),
    [(ScoreWeights(), {"b": 4}), (ANY_MODEL, {"a": 1, "b": 3})],
    ids=["one model", "any"],
)
def test_it_is_a_choice_whether_gangs_keep_to_one_model(
    label: str, weights: ScoreWeights, expected: dict[str, int]
) -> None:
    nodes = of("A", "a", label=label), of("B", "b", label=label)
    busy = pod("busy", gpu=6, on="a")
    assert where(cluster(*nodes, busy, *gang("g", 4, gpu=2), weights=weights)) == expected


def test_unlabelled_nodes_count_as_one_model() -> None:
    nodes = of("A", "a"), of("", "b"), of("", "c")
    busy = pod("busy", gpu=6, on="a"), pod("busier", gpu=4, on="b")
    assert where(cluster(*nodes, *busy, *gang("g", 4, gpu=2))) == {"b": 2, "c": 2}


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[NodeInfo], list[PodInfo], int, int]:
    """Draw nodes of up to three models, what is in use on them, and a gang."""
    nodes = [
        of(draw(st.sampled_from(["A", "B", "C", ""])), f"n{index}", draw(st.integers(0, 8)))
        for index in range(draw(st.integers(1, 6)))
    ]
    busy = [
        pod(f"busy-{each.name}", cpu=0, gpu=draw(st.integers(1, 8)), on=str(each.name))
        for each in nodes
        if draw(st.booleans())
    ]
    return nodes, busy, draw(st.integers(1, 6)), draw(st.integers(1, 4))


@given(mixed(), st.randoms(use_true_random=False))
def test_no_gang_waits_for_one_model_and_none_is_mixed_that_need_not_be(
    drawn: tuple[list[NodeInfo], list[PodInfo], int, int], random: Random
) -> None:
    nodes, busy, size, gpus = drawn
    pending = gang("g", size, gpu=gpus)
    found = where(cluster(*nodes, *busy, *pending))
    assert sum(found.values()) == sum(
        where(cluster(*nodes, *busy, *pending, weights=ANY_MODEL)).values()
    )
    shuffled = [*nodes, *busy, *pending]
    random.shuffle(shuffled)
    assert where(cluster(*shuffled)) == found
    models = {each.name: dict(each.labels).get(MODEL_LABELS[0], "") for each in nodes}
    if len({models[NodeName(name)] for name in found}) > 1:
        for model in set(models.values()):
            alike = [each for each in nodes if models[each.name] == model]
            there = {each.name for each in alike}
            using = [each for each in busy if each.node in there]
            assert not where(cluster(*alike, *using, *pending, weights=ANY_MODEL))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param("a", {"a": 1}, id="on the model of the running member"),
        pytest.param("b", {"b": 1}, id="though another node is fuller"),
    ],
)
def test_extra_pod_joins_the_model_of_the_running_members(
    runs: str, expected: dict[str, int]
) -> None:
    nodes = of("A", "a"), of("B", "b")
    busy = pod("busy", gpu=2, on="a")
    members = [pod("g-0", gpu=2, group="g", on=runs), pod("g-1", gpu=2, group="g")]
    assert where(cluster(*nodes, busy, group("g", 1), *members)) == expected


def test_extra_pods_take_another_model_when_theirs_is_full() -> None:
    nodes = of("A", "a"), of("B", "b", gpu=4)
    members = [
        pod(f"g-{number}", gpu=2, group="g", on=None if number else "b") for number in range(4)
    ]
    assert where(cluster(*nodes, group("g", 1), *members)) == {"b": 1, "a": 2}


def test_extra_pod_stays_in_the_network_domain_rather_than_on_its_model() -> None:
    """The only free node of the model is outside of the domain of the running members."""
    nodes = of("A", "a"), of("B", "b"), of("A", "far")
    members = [pod("g-0", gpu=8, group="g", on="a"), pod("g-1", gpu=2, group="g")]
    near = group("g", 1, network=NetworkTopologyRule(tier=1))
    state = cluster(*nodes, pod("busy", gpu=4, on="far"), near, *members)
    for name, inside in (("s0", ("a", "b")), ("s1", ("far",))):
        exact = tuple(HyperNodeMemberInfo(False, exact=each) for each in inside)
        state.nodes.set_hypernode(HyperNodeInfo(name, 1, members=exact))
    assert where(state) == {"b": 1}
