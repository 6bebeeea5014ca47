"""Gangs prefer devices of one model, and never stay pending for it."""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_stats import MODEL_LABELS
from gangline.scheduler.config.volcano import read_configuration
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.types.types import (
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeInfo,
    NodeName,
    PodInfo,
    PodKey,
    PreviousNodes,
)
from unit.scheduler.builders import cluster, gang, group, node, pod
from unit.scheduler.oracle.check import check_result

ANY_MODEL = ScoreWeights(same_device_model=0)


def of(model: str, name: str, gpu: int = 8, label: str = MODEL_LABELS[0]) -> NodeInfo:
    return node(name, cpu=64, gpu=gpu, labels={label: model} if model else {})


def where(state: SchedulerCache) -> Counter[str]:
    decision = run_cycle(state, 0.0)
    check_result(state, decision, 0.0)
    return Counter(str(binding.node) for binding in decision.bindings)


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


def test_gang_returns_to_its_nodes_of_any_device_model() -> None:
    places = ((PodKey("d/g-0"), NodeName("a")), (PodKey("d/g-1"), NodeName("b")))
    facts = group("g", 2, previous_nodes=PreviousNodes(60.0, places))
    pods = [pod(f"g-{index}", gpu=2, group="g") for index in range(2)]
    assert where(cluster(of("A", "a"), of("B", "b"), facts, *pods)) == {"a": 1, "b": 1}


def test_it_can_be_configured() -> None:
    text = (
        "tiers: [{plugins: [{name: binpack, arguments: "
        "{binpack.onemodel: 0, binpack.sparedevices: 7}}]}]"
    )
    assert read_configuration(text).weights == ScoreWeights(same_device_model=0, spare_devices=7)


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


LAW = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@LAW
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
    busy = pod("busy", gpu=4, on="a")
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
