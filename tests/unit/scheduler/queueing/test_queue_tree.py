"""Queues: limits, fair shares, order and head-of-line blocking."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.scheduler.queueing.queue_tree import (
    Matrix,
    QueueTree,
    Vector,
    ancestors,
    dominant_share,
    queue_problems,
    water_fill,
)
from gangline.scheduler.types.types import CycleResult, PodGroupInfo, PodInfo, QueueInfo
from unit.scheduler.builders import cluster, decide, group, node, pod, request

Facts = PodGroupInfo | PodInfo


def queue(name: str, cpu: float = 0, **facts: object) -> QueueInfo:
    """Make a queue that may use so much cpu (nothing: as much as it likes)."""
    most = request(cpu=cpu, pods=0) if cpu else ()
    return QueueInfo(name, **{"capability": most, **facts})  # type: ignore[arg-type]


def job(name: str, in_queue: str, size: int = 1, age: int = 0, **pods: object) -> list[Facts]:
    members = [
        pod(f"{name}-{index}", group=name, age=age, **pods)  # type: ignore[arg-type]
        for index in range(size)
    ]
    return [group(name, size, age, queue=in_queue), *members]


def placed(decision: CycleResult) -> dict[str, str]:
    return {binding.pod.removeprefix("d/"): binding.node for binding in decision.bindings}


def text(decision: CycleResult, name: str) -> str:
    return next(v.message for v in decision.pending_reasons if v.group == f"d/{name}")


def test_pods_beyond_a_minimum_are_shared_between_queues() -> None:
    state = cluster(
        node("n1", cpu=2),
        queue("q1"),
        queue("q2"),
        group("a", 0, queue="q1"),
        group("b", 0, age=1, queue="q2"),
        *(pod(f"a{i}", group="a") for i in range(2)),
        *(pod(f"b{i}", group="b") for i in range(2)),
    )
    assert sorted(placed(decide(state))) == ["a0", "b0"]


def test_a_job_that_cannot_fit_does_not_block_other_queues() -> None:
    state = cluster(
        node("n1", cpu=2),
        queue("q1"),
        queue("q2"),
        *job("big", "q1", cpu=3),
        *job("fits", "q2", age=1),
    )
    assert placed(decide(state)) == {"fits-0": "n1"}


def test_weights_decide_how_much_each_queue_gets() -> None:
    jobs: list[Facts] = []
    for index in range(8):
        jobs += job(f"a{index}", "light", age=index)
        jobs += job(f"b{index}", "heavy", age=index)
    state = cluster(node("n1", cpu=8), queue("light"), queue("heavy", weight=3), *jobs)
    got = [name[0] for name in placed(decide(state))]
    assert (got.count("a"), got.count("b")) == (2, 6)


def test_unrequested_share_may_be_borrowed() -> None:
    jobs = [fact for index in range(8) for fact in job(f"a{index}", "q1", age=index)]
    state = cluster(node("n1", cpu=8), queue("q1"), queue("idle", weight=100), *jobs)
    assert len(placed(decide(state))) == 8


def test_queue_within_its_fair_share_precedes_a_borrowing_queue() -> None:
    state = cluster(
        node("n1", cpu=4),
        queue("q1"),
        queue("q2"),
        *job("large", "q1", size=3, cpu=1),
        *job("mine", "q2", size=2, cpu=1, age=9),
    )
    assert sorted(placed(decide(state))) == ["mine-0", "mine-1"]


def test_higher_queues_go_first() -> None:
    state = cluster(
        node("n1", cpu=1),
        queue("low"),
        queue("high", priority=5),
        *job("first", "low"),
        *job("second", "high", age=9),
    )
    # Each is entitled to half a cpu: both would borrow.
    assert placed(decide(state)) == {"second-0": "n1"}


def test_a_limit_holds_for_the_queue_and_all_above_it() -> None:
    state = cluster(
        node("n1", cpu=8),
        queue("q3", cpu=4),
        queue("q31", parent="q3"),
        queue("q32", parent="q3"),
        queue("q33", parent="q3"),
        *job("r1", "q31", cpu=2, on="n1"),
        *job("r2", "q32", cpu=1, on="n1"),
        *job("wants", "q33", cpu=3),
    )
    decision = decide(state)
    assert not decision.bindings
    assert "Queue 'q3' is at its limit (3 of 4 cpu in use, 3 requested)" in text(decision, "wants")


def test_jobs_belong_in_leaves() -> None:
    state = cluster(
        node("n1"),
        queue("q1", cpu=4),
        queue("q11", cpu=1, parent="q1"),
        *job("leaf", "q11"),
        *job("inner", "q1"),
        *job("top", "root"),
    )
    decision = decide(state)
    assert placed(decision) == {"leaf-0": "n1"}
    assert {v.reason for v in decision.pending_reasons} == {"QueueNotLeaf", "QueueNotFound"}


def test_job_above_its_queues_limit_is_pending_without_reservation() -> None:
    state = cluster(
        node("n1"), queue("q", cpu=2), *job("huge", "q", cpu=3), *job("small", "q", age=1)
    )
    decision = decide(state)
    assert placed(decision) == {"small-0": "n1"}
    assert "can never run it" in text(decision, "huge")


def test_first_gang_blocked_by_a_limit_is_not_overtaken() -> None:
    state = cluster(
        node("n1"),
        queue("q", cpu=4),
        *job("runs", "q", cpu=2, on="n1"),
        *job("first", "q", cpu=3, age=1),
        *job("small", "q", cpu=1, age=2),
        *job("elsewhere", "default", cpu=1, age=3),
    )
    decision = decide(state)
    assert placed(decision) == {"elsewhere-0": "n1"}
    assert "An earlier gang waits" in text(decision, "small")


@pytest.mark.parametrize(
    ("guarantee", "asked", "runs"),
    [
        pytest.param(2, 0.5, False, id="all is guaranteed to another"),
        pytest.param(1, 1.5, False, id="the rest is too small"),
        pytest.param(1, 1, True, id="the rest is enough"),
    ],
)
def test_guarantee_is_never_borrowed(guarantee: float, asked: float, runs: bool) -> None:
    state = cluster(
        node("n1", cpu=2),
        queue("q1", guarantee=request(cpu=guarantee, pods=0)),
        queue("q2"),
        *job("job", "q2", cpu=asked),
    )
    assert bool(decide(state).bindings) is runs


def test_fifo_queue_keeps_its_order() -> None:
    state = cluster(
        node("n1", cpu=4),
        queue("strict", fifo=True),
        *job("big", "strict", cpu=9),
        *job("small", "strict", age=1),
        *job("other", "default", age=2),
    )
    decision = decide(state)
    assert placed(decision) == {"other-0": "n1"}
    assert "d/big comes first" in text(decision, "small")


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_deleted_pending_gang_delays_no_other_gang(sizes: list[int], data: st.DataObject) -> None:
    jobs = [job(f"j{i}", "strict", size=size, age=i) for i, size in enumerate(sizes)]
    things = [node("n1", cpu=3), node("n2", cpu=3), queue("strict", fifo=True)]
    state = cluster(*things, *(fact for each in jobs for fact in each))
    before = decide(state)
    waiting = [i for i in range(len(sizes)) if f"d/j{i}" not in before.placed]
    if waiting:
        gone = data.draw(st.sampled_from(waiting))
        rest = [fact for i, each in enumerate(jobs) if i != gone for fact in each]
        assert before.placed <= decide(cluster(*things, *rest)).placed


def test_a_queue_below_a_closed_one_is_closed() -> None:
    state = cluster(
        node("n1"), queue("up", open=False), queue("down", parent="up"), *job("job", "down")
    )
    decision = decide(state)
    assert not decision.bindings
    assert "'up' is closed" in text(decision, "job")


def test_nodes_that_cannot_be_had_are_not_shared_out() -> None:
    jobs: list[Facts] = []
    for index in range(4):
        jobs += job(f"a{index}", "q1", age=index)
        jobs += job(f"b{index}", "q2", age=10 + index)
    state = cluster(
        node("n1", cpu=2),
        node("n2", cpu=100, ready=False),
        node("n3", cpu=100, unschedulable=True),
        queue("q1"),
        queue("q2"),
        *jobs,
    )
    assert sorted(placed(decide(state))) == ["a0-0", "b0-0"]


def test_contradictions_between_queues_are_reported() -> None:
    queues = [
        queue("orphan", parent="nowhere"),
        queue("a", parent="b"),
        queue("b", parent="a"),
        queue("greedy", cpu=1, guarantee=request(cpu=2, pods=0)),
        queue("fine", parent="root"),
    ]
    found = queue_problems({each.name: each for each in queues})
    assert sorted(found) == ["a", "b", "greedy", "orphan"]
    state = cluster(node("n1"), *queues, *job("job", "a"), *job("own", "greedy"))
    assert len(decide(state).pending_reasons) == 1


AMOUNTS = st.floats(0, 1000, allow_nan=False)


@st.composite
def claims(draw: st.DrawFn) -> tuple[Vector, Vector, Matrix, Matrix]:
    count = draw(st.integers(1, 5))
    total = np.array([draw(AMOUNTS), draw(AMOUNTS)])
    weights = np.array([float(draw(st.integers(1, 9))) for _ in range(count)])
    wants = np.array([[draw(AMOUNTS), draw(AMOUNTS)] for _ in range(count)])
    floors = np.array([[draw(AMOUNTS), draw(AMOUNTS)] for _ in range(count)]) / (4 * count)
    return total, weights, floors, wants


@settings(deadline=None)
@given(claims())
def test_a_division_gives_floors_first_wants_at_most_and_wastes_nothing(
    claim: tuple[Vector, Vector, Matrix, Matrix],
) -> None:
    total, weights, floors, wants = claim
    got = water_fill(total, weights, floors, wants)
    paid = np.minimum(floors, wants)
    assert (got >= paid - 1e-6).all()
    assert (got <= wants + 1e-6).all()
    given_out = got.sum(axis=0)
    assert (given_out <= np.maximum(total, paid.sum(axis=0)) + 1e-3).all()
    assert (given_out >= np.minimum(total, wants.sum(axis=0)) - 1e-3).all()


@settings(deadline=None)
@given(claims())
def test_water_filling_is_fair_by_weight(
    claim: tuple[Vector, Vector, Matrix, Matrix],
) -> None:
    total, weights, floors, wants = claim
    got = water_fill(total, weights, floors, wants)
    for resource in range(len(total)):
        level = (got / weights[:, None])[:, resource]
        hungry = got[:, resource] < wants[:, resource] - 1e-3
        above_floor = got[:, resource] > np.minimum(floors, wants)[:, resource] + 1e-3
        if hungry.any() and above_floor.any():
            assert level[hungry].min() >= level[above_floor].max() - 1e-3


def test_queue_structure_is_reused_until_queues_or_resources_change() -> None:
    state = cluster(node("n"), QueueInfo("q"), pod("p", cpu=99))
    decide(state)
    known = state.queue_structure
    state.set_pod(pod("other", cpu=98))
    decide(state)
    assert state.queue_structure is known
    state.queues["q"] = QueueInfo("q", capability=request(cpu=1, pods=0))
    decide(state)
    assert (changed := state.queue_structure) is not known
    state.set_pod(pod("with a device", cpu=97, gpu=1))
    decide(state)
    assert state.queue_structure is not changed


def test_cycle_without_pending_gangs_builds_no_queue_tree() -> None:
    state = cluster(node("n"), pod("p", group="missing"))
    decision = decide(state)
    assert [reason.group for reason in decision.pending_reasons] == ["d/missing"]
    assert state.queue_structure is None


@pytest.mark.parametrize(
    ("used", "entitled", "share"),
    [
        pytest.param((2, 1), (4, 8), 0.5, id="the largest fraction"),
        pytest.param((1, 6), (4, 8), 0.75, id="of any resource"),
        pytest.param((0, 0), (0, 0), 0.0, id="nothing is used"),
        pytest.param((0, 2), (0, 8), 0.25, id="unused resources do not count"),
        pytest.param((1, 2), (0, 8), float("inf"), id="beyond a share of nothing"),
    ],
)
def test_dominant_share(used: tuple[float, ...], entitled: tuple[float, ...], share: float) -> None:
    assert dominant_share(np.array(used, float), np.array(entitled, float)) == share


def tree_of(*queues: QueueInfo, cpu: float = 8) -> QueueTree:
    state = cluster(node("n", cpu=cpu), *queues)
    return QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)


def test_limits_count_usage_and_reservations_of_the_queue_and_its_ancestors() -> None:
    tree = tree_of(queue("top", 4), queue("low", parent="top"), queue("free"))
    one = tree.vector({"cpu": 1000})

    def blocking(name: str, amount: Vector) -> str | None:
        found = tree.blocking_queue(name, amount)
        return found.info.name if found is not None else None

    assert blocking("low", 4 * one) is None
    assert blocking("low", 5 * one) in ("low", "top")
    assert blocking("free", 99 * one) is None
    tree.add_usage("low", 2 * one)
    tree.reserve("low", one)
    assert blocking("low", one) is None
    assert blocking("low", 2 * one) is not None
    assert blocking("top", 2 * one) == "top"
    tree.add_usage("low", one, -1)
    assert blocking("low", 2 * one) is None
    assert blocking("low", tree.vector({"memory": 2**40})) is None


def test_as_many_pods_are_allowed_as_the_limit_and_at_least_one() -> None:
    tree = tree_of(queue("q", 4))
    one = tree.vector({"cpu": 1000})
    assert tree.allowed_count("q", one, 4) == 4
    assert tree.allowed_count("q", one, 8) == 4
    assert tree.allowed_count("q", one, 5) == 2
    assert tree.allowed_count("q", 5 * one, 3) == 1
    assert tree.allowed_count("q", one, 1) == 1


def test_queue_blocks_gangs_if_it_has_a_limit_or_is_fifo() -> None:
    tree = tree_of(
        queue("limited", 4),
        queue("below", parent="limited"),
        queue("ordered", fifo=True),
        queue("free"),
    )
    blocks = {name: not tree.never_blocks(name) for name in tree.queues if name != "root"}
    assert blocks == {
        "limited": True, "below": True, "ordered": True, "free": False, "default": False
    }  # fmt: skip


def test_ancestors_end_at_a_missing_parent_and_at_a_cycle() -> None:
    queues = {
        each.name: each
        for each in (
            queue("a", parent="b"),
            queue("b", parent="c"),
            queue("c", parent="gone"),
            queue("x", parent="y"),
            queue("y", parent="x"),
        )
    }
    assert ancestors(queues, "a") == ["b", "c"]
    assert ancestors(queues, "x") == ["y", "x"]


def test_usage_outside_of_all_queues_is_no_capacity_of_queues() -> None:
    state = cluster(
        node("n", cpu=8),
        node("down", cpu=4, ready=False),
        queue("q"),
        group("runs", 1, queue="q"),
        pod("runs-0", cpu=2, group="runs", on="n"),
        pod("other", cpu=3, on="n", is_ours=False),
    )
    tree = QueueTree(state.queues, state.nodes, state.usage, state.pending_usage)
    cpu = tree.columns["cpu"]
    assert tree.total[cpu] == 5000
    assert (tree.queues["q"].used[cpu], tree.queues["default"].used[cpu]) == (2000, 0)


@pytest.mark.parametrize("guaranteed", [1, 2])
def test_last_device_is_not_borrowed_from_a_guarantee(guaranteed: int) -> None:
    state = cluster(
        node("n", gpu=1),
        queue("owner", guarantee=request(gpu=guaranteed, pods=0)),
        queue("q"),
        *job("wants", "q", gpu=1),
    )
    decision = decide(state)
    assert placed(decision) == {}
    assert "Queue 'q'" in text(decision, "wants")
