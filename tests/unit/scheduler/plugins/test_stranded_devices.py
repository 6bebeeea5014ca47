"""Stranded devices: what is counted, what is learned, and which nodes pods get because of it."""

from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.node_stats import Mask
from gangline.scheduler.cache.node_table import DEFAULT_WEIGHTS
from gangline.scheduler.forecast import copy_state
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.plugins.stranded_devices import (
    HALF_LIFE_PODS,
    WEIGHT_UNITS,
    Mix,
    RequestMix,
    StrandedDevices,
    TypicalRequest,
)
from gangline.scheduler.types import (
    EPOCH,
    LabelExpression,
    NodeTerm,
    PlacementConstraints,
    PodInfo,
    PodKey,
    Request,
    shape_of,
)
from unit.scheduler.builders import (
    ANYWHERE,
    GPU,
    cluster,
    decide,
    gang,
    node,
    on_label,
    pod,
)
from unit.scheduler.builders import request as amounts

COLUMNS = {"cpu": 0, "memory": 1, GPU: 2, "x.org/nic": 3}
UNSCORED = ScoreWeights(stranded_devices=0)


def typical(needs: Request, weight: int) -> tuple[TypicalRequest, int]:
    return TypicalRequest(needs, ANYWHERE), weight


def expected(mix: Mix, free: list[int], accepted: list[bool], largest: list[int]) -> float:
    """The definition, request by request."""
    total = 0.0
    for (request_, weight), accepts in zip(mix.items(), accepted, strict=True):
        needs = dict(request_.needs)
        devices = [name for name in needs if "/" in name]
        if not accepts or any(free[COLUMNS[name]] < need for name, need in needs.items()):
            for name in devices:
                column = COLUMNS[name]
                share = weight // len(devices) / WEIGHT_UNITS
                total += share * max(free[column], 0) / max(largest[column], 1)
    return total


FREE = st.lists(st.integers(-2, 9), min_size=4, max_size=4)
NEEDS = st.dictionaries(st.sampled_from(["cpu", "memory", "x.org/nic"]), st.integers(1, 8)).flatmap(
    lambda needs: st.integers(1, 8).map(lambda gpu: tuple(sorted({**needs, GPU: gpu}.items())))
)


@settings(max_examples=30)
@given(
    st.dictionaries(NEEDS, st.integers(1, 500), min_size=1, max_size=14),
    st.lists(FREE, min_size=1, max_size=4),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
    st.integers(1, 3),
    st.data(),
)
def test_stranded_devices_are_those_that_typical_requests_cannot_use(
    mix: dict[Request, int],
    free: list[list[int]],
    demand: list[int],
    pods: int,
    data: st.DataObject,
) -> None:
    weighted = dict(typical(needs, weight) for needs, weight in mix.items())
    table, rows = np.array(free).T, len(free)
    accepts: list[Mask] = [
        np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))) for _ in mix
    ]
    stranded = StrandedDevices(weighted, COLUMNS, table)
    stranded.set_accepted(accepts, rows)
    asked = {column: amount for column, amount in enumerate(demand) if amount}
    left = {column: table[column] - amount * pods for column, amount in asked.items()}

    together = stranded.in_rows(table, left, None)
    alone = [stranded.in_row(table, row, asked, pods) for row in range(rows)]

    assert np.array(alone).tobytes() == together.tobytes()
    largest = table.max(axis=1).tolist()
    for row, amount in enumerate(free):
        accepted = [bool(mask[row]) for mask in accepts]
        after = [amount[column] - demand[column] * pods for column in range(4)]
        change = expected(weighted, after, accepted, largest) - expected(
            weighted, amount, accepted, largest
        )
        assert together[row] == pytest.approx(change)


def learned(*pods: tuple[Request, int], created: int = 0) -> RequestMix:
    mix = RequestMix()
    for needs, count in pods:
        for _ in range(count):
            mix.observe(shape_of(needs, ANYWHERE), EPOCH + timedelta(seconds=created))
    return mix


def shares(mix: RequestMix) -> dict[int, float]:
    """By number of devices."""
    return {dict(r.needs)[GPU]: weight / WEIGHT_UNITS for r, weight in mix.typical.items()}


def test_older_pods_count_half_with_every_half_life() -> None:
    mix = learned((amounts(gpu=1), HALF_LIFE_PODS), (amounts(cpu=1), 5))
    assert mix.update(())
    assert shares(mix) == {1: 1.0}
    for _ in range(HALF_LIFE_PODS):
        mix.observe(shape_of(amounts(gpu=8), ANYWHERE), EPOCH + timedelta(seconds=1))
    assert mix.update(())
    assert shares(mix) == pytest.approx({8: 2 / 3, 1: 1 / 3}, abs=1e-3)


def test_order_in_which_pods_are_seen_between_cycles_does_not_matter() -> None:
    one, other = RequestMix(), RequestMix()
    seen = [(gpu, at) for at in range(3) for gpu in (1, 2, 4) for _ in range(at * gpu + 50)]
    for mix, order in ((one, seen), (other, seen[::-1])):
        for gpu, at in order:
            mix.observe(shape_of(amounts(gpu=gpu), ANYWHERE), EPOCH + timedelta(seconds=at))
        mix.update(())
    assert one.typical == other.typical


def test_a_small_change_of_the_mix_keeps_cached_scores() -> None:
    mix = learned((amounts(gpu=1), 1000))
    mix.update(())
    for number in range(600):
        mix.observe(shape_of(amounts(gpu=2 if number < 20 else 1), ANYWHERE), EPOCH)
    assert not mix.update(())
    assert shares(mix) == {1: 1.0}


def where(state: SchedulerCache) -> dict[str, int]:
    return dict(Counter(str(binding.node) for binding in decide(state).bindings))


POD = amounts(cpu=4, gpu=1)
"""The usual pod of these tests."""


def used_to(state: SchedulerCache, needs: Request = POD, count: int = 100) -> SchedulerCache:
    """Let the cluster have seen pods that have ended."""
    for number in range(count):
        key = PodKey(f"d/old-{number}")
        state.set_pod(PodInfo(key, key, shape_of(needs, ANYWHERE), phase="Succeeded"))
        state.remove_pod(key)
    return state


def beside(new: dict[str, float], weights: ScoreWeights = DEFAULT_WEIGHTS) -> dict[str, int]:
    """Where a pod goes: on ``full`` all CPU but 6 is used beside 2 devices, ``empty`` is empty."""
    nodes = [node(name, cpu=16, gpu=4) for name in ("empty", "full")]
    state = used_to(cluster(*nodes, pod("a", cpu=10, gpu=2, on="full"), weights=weights))
    state.set_pod(pod("new", cpu=new["cpu"], gpu=int(new.get("gpu", 0))))
    return where(state)


@pytest.mark.parametrize(
    ("new", "goes_to", "unscored"),
    [
        pytest.param({"cpu": 4, "gpu": 1}, "empty", "full", id="a device without CPU is left over"),
        pytest.param({"cpu": 4, "gpu": 2}, "full", "full", id="no device is left over"),
        pytest.param({"cpu": 6}, "empty", "full", id="CPU beside devices"),
    ],
)
def test_pod_goes_where_it_leaves_no_device_that_the_usual_pod_cannot_use(
    new: dict[str, float], goes_to: str, unscored: str
) -> None:
    assert beside(new) == {goes_to: 1}
    assert beside(new, UNSCORED) == {unscored: 1}


def test_preference_of_a_pod_outweighs_stranded_devices() -> None:
    term = NodeTerm((LabelExpression("pool", "In", ("a",)),))
    weak = PlacementConstraints(preferred=((1, term),))
    nodes = [node("a", cpu=6, gpu=2, labels={"pool": "a"}), node("b", cpu=16, gpu=4)]
    state = used_to(cluster(*nodes))
    state.set_pod(pod("new", cpu=4, gpu=1, constraints=weak))
    assert where(state) == {"a": 1}


def test_gang_fills_nodes_although_each_of_its_pods_breaks_up_an_empty_one() -> None:
    nodes = [node(f"n{index}", cpu=64, gpu=8) for index in range(6)]
    state = used_to(cluster(*nodes), amounts(gpu=4))
    for fact in gang("g", 8, gpu=2):
        (state.set_pod if isinstance(fact, PodInfo) else state.set_group)(fact)
    assert sorted(where(state).values()) == [4, 4]


def test_requests_that_nodes_do_not_accept_leave_those_to_others() -> None:
    labels = {"pool": "a"}
    nodes = [node("a", cpu=64, gpu=4, labels=labels), node("b", cpu=64, gpu=4)]
    state = cluster(*nodes)
    for number in range(100):
        state.set_pod(pod(f"old-{number}", gpu=1, constraints=on_label(pool="a"), phase="Failed"))
    state.set_pod(pod("new", gpu=1))
    assert where(state) == {"b": 1}


def test_forecast_and_restart_learn_from_the_same_pods() -> None:
    state = used_to(cluster(node("n", cpu=64, gpu=8)))
    state.set_pod(pod("new", gpu=1))
    decide(state)
    copied = copy_state(state)
    decide(copied)
    assert copied.nodes.request_mix.typical == state.nodes.request_mix.typical
