"""Queues: limits, fair shares, order and head-of-line blocking."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import (
    HIERARCHY_ANNOTATION,
    HIERARCHY_WEIGHTS_ANNOTATION,
    Queue,
)
from gangline.scheduler.cache.convert import queue_info
from gangline.scheduler.queueing.queue_tree import (
    HierarchyPosition,
    Matrix,
    QueueHierarchy,
    QueueTree,
    Vector,
    ancestors,
    dominant_share,
    hierarchy_position,
    hierarchy_problem,
    water_fill,
)
from gangline.scheduler.reporting.warnings import unreadable_queue_fields
from gangline.scheduler.types import CycleResult, PodGroupInfo, PodInfo, QueueInfo
from unit.scheduler.builders import cluster, decide, group, node, placed, pod, request

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


def text(decision: CycleResult, name: str) -> str:
    return next(v.message for v in decision.pending_reasons if v.group == f"d/{name}")


def test_unrequested_share_may_be_borrowed() -> None:
    jobs = [fact for index in range(8) for fact in job(f"a{index}", "q1", age=index)]
    state = cluster(node("n1", cpu=8), queue("q1"), queue("idle", weight=100), *jobs)
    assert len(placed(decide(state))) == 8


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


AMOUNTS = st.floats(0, 1000, allow_nan=False)


@st.composite
def claims(draw: st.DrawFn) -> tuple[Vector, Vector, Matrix, Matrix]:
    count = draw(st.integers(1, 5))
    total = np.array([draw(AMOUNTS), draw(AMOUNTS)])
    weights = np.array([float(draw(st.integers(1, 9))) for _ in range(count)])
    wants = np.array([[draw(AMOUNTS), draw(AMOUNTS)] for _ in range(count)])
    floors = np.array([[draw(AMOUNTS), draw(AMOUNTS)] for _ in range(count)]) / (4 * count)
    return total, weights, floors, wants


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


def annotated_queue(name: str, path: str | None = None, weights: str | None = None) -> Queue:
    written = {HIERARCHY_ANNOTATION: path, HIERARCHY_WEIGHTS_ANNOTATION: weights}
    annotations = {key: value for key, value in written.items() if value is not None}
    return Queue(metadata=ObjectMeta(name=name, annotations=annotations))


@pytest.mark.parametrize(
    ("path", "weights", "place"),
    [
        ("root/eng/dev", "100/50/8", HierarchyPosition((("root/eng", 50.0),), 8.0)),
        ("eng/dev", "50/8", HierarchyPosition((("root/eng", 50.0),), 8.0)),
        ("root/a/b/c", "1/2/3/4", HierarchyPosition((("root/a", 2.0), ("root/a/b", 3.0)), 4.0)),
        ("root/dev", "1/0.5", HierarchyPosition((), 1.0)),
        ("root/dev", None, HierarchyPosition((), 1.0)),
    ],
)
def test_a_place_is_read_from_the_top_down(
    path: str, weights: str | None, place: HierarchyPosition
) -> None:
    assert hierarchy_position(annotated_queue("dev", path, weights)) == place
    assert not unreadable_queue_fields(annotated_queue("dev", path, weights))


@pytest.mark.parametrize(
    ("path", "weights"),
    [
        pytest.param("root/eng/dev", "1/2", id="too few weights"),
        pytest.param("root//dev", "1/2/3", id="a name is missing"),
        pytest.param("root/eng/dev", "1/many/3", id="no number"),
        pytest.param("root/eng/dev", "1/-2/3", id="must not be negative"),
        pytest.param("root/eng/dev", "1/0/3", id="must not be zero"),
        pytest.param("root/eng/dev", "1/inf/3", id="endless"),
        pytest.param("root", "1", id="the root itself"),
    ],
)
def test_unreadable_hierarchy_is_reported_and_ignored(path: str, weights: str) -> None:
    assert hierarchy_position(annotated_queue("dev", path, weights)) is None
    assert unreadable_queue_fields(annotated_queue("dev", path, weights)).startswith(
        HIERARCHY_ANNOTATION
    )


def test_queues_without_a_place_have_nothing_wrong_with_it() -> None:
    assert hierarchy_position(annotated_queue("dev")) is None
    assert not hierarchy_problem(annotated_queue("dev"))


def arranged(*queues: Queue) -> dict[str, QueueInfo]:
    hierarchy, facts = QueueHierarchy(), {}
    for each in queues:
        facts[each.metadata.name] = queue_info(each)
        hierarchy.update(each)
    hierarchy.apply_to(facts)
    once = dict(facts)
    hierarchy.apply_to(facts)
    assert facts == once
    return facts


def test_inner_nodes_of_the_path_become_queues() -> None:
    found = arranged(annotated_queue("dev", "root/eng/dev", "1/2/8"), annotated_queue("own"))
    assert (found["root/eng"].weight, found["root/eng"].parent) == (2.0, "")
    assert (found["dev"].weight, found["dev"].parent) == (8.0, "root/eng")
    assert found["own"] == queue_info(annotated_queue("own"))


def test_moved_or_deleted_queue_leaves_no_trace() -> None:
    hierarchy = QueueHierarchy()
    facts = {"dev": queue_info(annotated_queue("dev"))}
    hierarchy.update(annotated_queue("dev", "root/eng/dev", "1/2/8"))
    hierarchy.apply_to(facts)
    hierarchy.update(annotated_queue("dev", "root/ops/dev", "1/2/8"))
    hierarchy.apply_to(facts)
    assert sorted(facts) == ["dev", "root/ops"]
    hierarchy.update(annotated_queue("dev"))
    facts["dev"] = queue_info(annotated_queue("dev"))
    hierarchy.apply_to(facts)
    assert facts == {"dev": queue_info(annotated_queue("dev"))}


def test_of_two_weights_for_one_queue_the_first_by_name_holds_in_any_order() -> None:
    both = [
        annotated_queue("a", "root/eng/a", "1/2/1"),
        annotated_queue("b", "root/eng/b", "1/7/1"),
    ]
    assert arranged(*both) == arranged(*both[::-1])
    assert arranged(*both)["root/eng"].weight == 2.0
