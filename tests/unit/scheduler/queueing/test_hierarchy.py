"""Queues whose position in the tree comes from annotations."""

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import (
    HIERARCHY_ANNOTATION,
    HIERARCHY_WEIGHTS_ANNOTATION,
    Queue,
)
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import queue_info
from gangline.scheduler.config.volcano import read_configuration
from gangline.scheduler.queueing.hierarchy import (
    HierarchyPosition,
    QueueHierarchy,
    hierarchy_position,
    hierarchy_problem,
)
from gangline.scheduler.reporting.warnings import unreadable_queue_fields
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types.types import GroupKey, QueueInfo
from unit.scheduler.builders import cluster, decide, group, node, pod
from unit.scheduler.oracle.check import check_result


def queue(name: str, path: str | None = None, weights: str | None = None) -> Queue:
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
    assert hierarchy_position(queue("dev", path, weights)) == place
    assert not unreadable_queue_fields(queue("dev", path, weights))


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
    assert hierarchy_position(queue("dev", path, weights)) is None
    assert unreadable_queue_fields(queue("dev", path, weights)).startswith(HIERARCHY_ANNOTATION)


def test_queues_without_a_place_have_nothing_wrong_with_it() -> None:
    assert hierarchy_position(queue("dev")) is None
    assert not hierarchy_problem(queue("dev"))


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
    found = arranged(queue("dev", "root/eng/dev", "1/2/8"), queue("own"))
    assert (found["root/eng"].weight, found["root/eng"].parent) == (2.0, "")
    assert (found["dev"].weight, found["dev"].parent) == (8.0, "root/eng")
    assert found["own"] == queue_info(queue("own"))


def test_moved_or_deleted_queue_leaves_no_trace() -> None:
    hierarchy = QueueHierarchy()
    facts = {"dev": queue_info(queue("dev"))}
    hierarchy.update(queue("dev", "root/eng/dev", "1/2/8"))
    hierarchy.apply_to(facts)
    hierarchy.update(queue("dev", "root/ops/dev", "1/2/8"))
    hierarchy.apply_to(facts)
    assert sorted(facts) == ["dev", "root/ops"]
    hierarchy.update(queue("dev"))
    facts["dev"] = queue_info(queue("dev"))
    hierarchy.apply_to(facts)
    assert facts == {"dev": queue_info(queue("dev"))}


def test_of_two_weights_for_one_queue_the_first_by_name_holds_in_any_order() -> None:
    both = [queue("a", "root/eng/a", "1/2/1"), queue("b", "root/eng/b", "1/7/1")]
    assert arranged(*both) == arranged(*both[::-1])
    assert arranged(*both)["root/eng"].weight == 2.0


TREE = (
    queue("dev", "root/eng/dev", "1/3/1"),
    queue("prod", "root/eng/prod", "1/3/2"),
    queue("sales", "root/sales", "1/1"),
)


def crowded() -> SchedulerCache:
    """12 CPU, and three queues that would each take all of it, one CPU at a time."""
    state = cluster(node("n", cpu=12))
    state.queues |= arranged(*TREE)
    for name in ("dev", "prod", "sales"):
        for index in range(12):
            state.set_group(group(f"{name}-{index}", 1, queue=name))
            state.set_pod(pod(f"{name}-{index}", cpu=1, group=f"{name}-{index}"))
    return state


def test_weights_divide_level_by_level() -> None:
    state = crowded()
    decision = decide(state)
    check_result(state, decision, 0.0)
    got = [str(binding.group).removeprefix("d/").partition("-")[0] for binding in decision.bindings]
    # A quarter for sales; of the others' nine two thirds for prod.
    assert {name: got.count(name) for name in ("dev", "prod", "sales")} == {
        "dev": 3,
        "prod": 6,
        "sales": 3,
    }


def test_unrequested_share_is_distributed_to_siblings_first() -> None:
    state = crowded()
    for key in [key for key in state.pods if key.startswith("d/dev")]:
        state.remove_pod(key)
    decision = decide(state)
    got = [str(binding.group) for binding in decision.bindings]
    assert sum(name.startswith("d/prod") for name in got) == 9


def test_jobs_belong_in_leaf_queues() -> None:
    state = crowded()
    state.set_group(group("lost", 1, queue="root/eng"))
    state.set_pod(pod("lost", group="lost"))
    (verdict,) = [v for v in decide(state).pending_reasons if v.group == GroupKey("d/lost")]
    assert verdict.reason == "QueueNotLeaf"


@pytest.mark.parametrize(
    ("switch", "expected"), [("", False), (", enableHierarchy: true", True)], ids=["usual", "on"]
)
def test_places_hold_only_where_that_is_asked_for(switch: str, expected: bool) -> None:
    found = read_configuration(f"tiers: [{{plugins: [{{name: drf{switch}}}]}}]")
    assert found.apply_to(SchedulerSettings()).hierarchical is expected
