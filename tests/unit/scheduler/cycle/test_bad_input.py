"""Invalid objects are reported, ignored, and do not affect other objects."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.core import PodDisruptionBudget
from gangline.api.core.node import Node, NodeStatus
from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import PodGroup, PodGroupSpec, Queue, QueueSpec
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import budget_info, group_info, node_info, queue_info
from gangline.scheduler.queueing.queue_tree import queue_problems
from gangline.scheduler.types import (
    GroupKey,
    HyperNodeInfo,
    HyperNodeMemberInfo,
    NetworkTopologyRule,
    NodeName,
    PodKey,
    QueueInfo,
    Reservation,
)
from unit.scheduler.builders import GPU, cluster, decide, gang, group, node, placed, pod, request
from unit.scheduler.oracle.check import violations

NAMES = ["a", "b", "c", "d"]
AMOUNTS = st.one_of(
    st.just(()),
    st.builds(
        lambda cpu, gpu: request(cpu=cpu, gpu=gpu, pods=0),
        st.integers(0, 9) | st.just(2**40),
        st.integers(0, 3),
    ),
)


@st.composite
def contradictory(draw: st.DrawFn) -> SchedulerCache:
    """Draw arbitrary queues, and jobs in and outside them."""
    queues = [
        QueueInfo(
            name,
            open=draw(st.integers(0, 5)) > 0,
            weight=draw(st.integers(1, 65535)),
            capability=draw(AMOUNTS),
            deserved=draw(AMOUNTS),
            guarantee=draw(AMOUNTS),
            reclaimable=draw(st.booleans()),
            priority=draw(st.integers(0, 2)),
            parent=draw(st.sampled_from(["", "root", "nobody", *NAMES])),
            fifo=draw(st.booleans()),
        )
        for name in NAMES
    ]
    nodes = [node(f"n{index}", cpu=draw(st.integers(0, 6)), gpu=2) for index in range(3)]
    state = cluster(*nodes, *queues)
    for index in range(draw(st.integers(1, 7))):
        runs = draw(st.integers(0, 2)) == 0
        size = draw(st.integers(1, 3))
        facts = group(
            f"g{index}",
            draw(st.integers(-2, size + 1)),
            queue=draw(st.sampled_from(["default", "root", "nobody", *NAMES])),
            priority=draw(st.sampled_from([-(2**31), 0, 0, 5, 2**31 - 1])),
            min_task_member=draw(st.sampled_from([(), (("w", -1),), (("w", 1),), (("x", 1),)])),
        )
        state.set_group(facts)
        for member in range(size):
            state.set_pod(
                pod(
                    f"g{index}-{member}",
                    cpu=draw(st.sampled_from([0, 1, 2, 2**40])) if not runs else 1,
                    gpu=draw(st.integers(0, 1)),
                    group=f"g{index}",
                    on=f"n{member}" if runs else None,
                    role="w",
                )
            )
    return state


@given(contradictory())
def test_arbitrary_queues_and_groups_give_valid_and_explained_results(
    state: SchedulerCache,
) -> None:
    decision = decide(state)
    assert not list(violations(state, decision))
    explained = {pod for verdict in decision.pending_reasons for pod, _ in verdict.pods}
    assert explained | {binding.pod for binding in decision.bindings} == set(state.pending)
    assert all(text for verdict in decision.pending_reasons for _, text in verdict.pods)
    queue_problems(state.queues)


GOOD = pod("good")
QUEUES = [
    pytest.param([QueueInfo("q", parent="q")], "q", "its own ancestor", id="its own parent"),
    pytest.param(
        [QueueInfo("q", parent="r"), QueueInfo("r", parent="q")], "q", "ancestor", id="a circle"
    ),
    pytest.param([QueueInfo("q", parent="none")], "q", "does not exist", id="no such parent"),
    pytest.param(
        [QueueInfo("q", guarantee=request(cpu=3, pods=0), capability=request(cpu=2, pods=0))],
        "q",
        "guarantee of cpu exceeds its capability",
        id="a guarantee above the capability",
    ),
    pytest.param(
        [QueueInfo("q", deserved=request(cpu=3, pods=0), capability=request(cpu=2, pods=0))],
        "q",
        "deserved cpu exceeds its capability",
        id="deserved above the capability",
    ),
    pytest.param(
        [
            QueueInfo("p", capability=request(cpu=2, pods=0)),
            QueueInfo("q", parent="p", capability=request(cpu=3, pods=0)),
        ],
        "q",
        "capability of cpu exceeds that of 'p'",
        id="a capability above the parent's",
    ),
    pytest.param(
        [
            QueueInfo("p", capability=request(cpu=3, pods=0)),
            QueueInfo("q", parent="p", guarantee=request(cpu=2, pods=0)),
            QueueInfo("r", parent="p", guarantee=request(cpu=2, pods=0)),
        ],
        "p",
        "guarantees of its child queues exceed its capability of cpu",
        id="guarantees of children above the parent",
    ),
    pytest.param(
        [
            QueueInfo("p", deserved=request(cpu=3, pods=0)),
            QueueInfo("q", parent="p", deserved=request(cpu=2, pods=0)),
            QueueInfo("r", parent="p", deserved=request(cpu=2, pods=0)),
        ],
        "p",
        "child queues deserve more cpu",
        id="children deserve more than the parent",
    ),
]


@pytest.mark.parametrize(("queues", "name", "message"), QUEUES)
def test_contradictory_queue_is_reported_and_others_are_served(
    queues: list[QueueInfo], name: str, message: str
) -> None:
    state = cluster(node("n"), *queues, *gang("g", 1), group("h", 1, queue="q"), GOOD)
    assert message in queue_problems(state.queues)[name]
    assert {"good", "g-worker-0"} <= placed(decide(state)).keys()


@pytest.mark.parametrize(
    ("facts", "binds"),
    [
        pytest.param({"minimum": -5}, {"a", "b"}, id="must not be negative must start"),
        pytest.param({"minimum": 3}, set(), id="more must start than there are"),
        pytest.param({"minimum": 10**9}, set(), id="absurdly many must start"),
        pytest.param({"min_task_member": (("w", -3),)}, {"a", "b"}, id="less than no role"),
        pytest.param({"min_task_member": (("ghost", 1),)}, set(), id="a role nobody has"),
        pytest.param({"min_task_member": (("w", 9),)}, set(), id="more of a role than there are"),
        pytest.param({"queue": ""}, set(), id="a queue without a name"),
        pytest.param({"queue": "root"}, set(), id="the root of all queues"),
        pytest.param({"network": NetworkTopologyRule(tier=0)}, set(), id="no domain is so close"),
        pytest.param({"network": NetworkTopologyRule(tier_name="none")}, set(), id="no such tier"),
        pytest.param({"priority": -(2**31)}, {"a", "b"}, id="the lowest priority"),
    ],
)
def test_a_group_whose_numbers_cannot_be_waits_with_a_reason_and_others_go_on(
    facts: dict[str, object], binds: set[str]
) -> None:
    members = [pod(name, group="g", role="w") for name in "ab"]
    state = cluster(node("n"), group("g", **facts), *members, GOOD)  # type: ignore[arg-type]
    decision = decide(state)
    assert placed(decision).keys() == binds | {"good"}
    assert bool(decision.pending_reasons) == (not binds)
    assert all(verdict.message for verdict in decision.pending_reasons if verdict.group)


@pytest.mark.parametrize("quantity", ["-4", "-1Gi", "1e30", "9999999999999Ti", "four", "", "1Xi"])
def test_amounts_of_nodes_and_queues_that_are_none_neither_overflow_nor_stop_anything(
    quantity: str,
) -> None:
    has = {"cpu": quantity, "memory": quantity, GPU: quantity}
    there = Node(metadata=ObjectMeta(name="odd"), status=NodeStatus(allocatable=has))
    written = Queue(metadata=ObjectMeta(name="q"), spec=QueueSpec(capability=has, deserved=has))
    odd = node_info(there)
    state = cluster(odd, node("n"), queue_info(written), group("g", 1, queue="q"), GOOD)
    state.set_pod(pod("p", cpu=1, group="g"))
    assert "good" in placed(decide(state))
    assert all(amount >= 0 for _, amount in odd.allocatable)


@pytest.mark.parametrize(
    "text", ["", "yes please", "{", "null", "[]", "2024-13-45", "\u0000", "9" * 99]
)
def test_annotations_that_cannot_be_read_mean_nothing(text: str) -> None:
    keys = [
        "gangline.dev/previous-nodes",
        "gangline.dev/reserved",
        "gangline.dev/checkpointed-at",
        "volcano.sh/preemptable",
        "volcano.sh/task-topology-affinity",
        "volcano.sh/task-topology-anti-affinity",
    ]
    metadata = ObjectMeta(name="g", namespace="d", annotations=dict.fromkeys(keys, text))
    facts = group_info(PodGroup(metadata=metadata, spec=PodGroupSpec(min_member=1)), {})
    assert facts.previous_nodes is None
    assert facts.checkpointed_at == 0
    assert facts.preemptable
    assert placed(decide(cluster(node("n"), facts, pod("p", group="g")))).keys() == {"p"}


def test_a_node_on_which_more_is_used_than_it_has_takes_nothing_more() -> None:
    crowd = [pod(f"c{index}", cpu=4, on="full") for index in range(3)]
    state = cluster(node("full", cpu=8), node("n"), *crowd, *gang("g", 2, cpu=1))
    assert {binding.node for binding in decide(state).bindings} == {"n"}


def test_allocatable_above_the_capacity_counts_as_for_kube_scheduler() -> None:
    status = NodeStatus(capacity={"cpu": "4"}, allocatable={"cpu": "8"})
    facts = node_info(Node(metadata=ObjectMeta(name="n"), status=status))
    assert dict(facts.allocatable)["cpu"] == 8000


def test_a_budget_without_a_selector_protects_nothing() -> None:
    facts = budget_info(PodDisruptionBudget(metadata=ObjectMeta(name="b", namespace="d")))
    assert not facts.covers(pod("p"))


def _lose_node(state: SchedulerCache) -> None:
    state.remove_node(NodeName("n"))


def _lose_group(state: SchedulerCache) -> None:
    state.remove_group(GroupKey("d/g"))


def _lose_queue(state: SchedulerCache) -> None:
    del state.queues["q"]


def _lose_pod(state: SchedulerCache) -> None:
    state.remove_pod(PodKey("d/g-0"))


def _lose_domain(state: SchedulerCache) -> None:
    state.nodes.remove_hypernode("s")


def _all_at_once(state: SchedulerCache) -> None:
    for lose in (_lose_domain, _lose_pod, _lose_queue, _lose_group, _lose_node):
        lose(state)


@pytest.mark.parametrize(
    "lose", [_lose_node, _lose_group, _lose_queue, _lose_pod, _lose_domain, _all_at_once]
)
@pytest.mark.parametrize("stage", ["waiting", "decided", "evicting", "promised"])
def test_objects_deleted_between_cycles_affect_no_other_gang(
    stage: str, lose: Callable[[SchedulerCache], None]
) -> None:
    state = cluster(node("n", cpu=2), node("m", cpu=2), QueueInfo("q"))
    state.nodes.set_hypernode(
        HyperNodeInfo("s", 1, members=(HyperNodeMemberInfo(False, pattern="."),))
    )
    state.set_group(group("g", 2, queue="q", priority=5, network=NetworkTopologyRule(tier=1)))
    for index in range(2):
        state.set_pod(pod(f"g-{index}", cpu=2, group="g"))
    if stage in ("evicting", "promised"):
        low = "low" if stage == "evicting" else "high"
        state.set_group(group(low, 1, queue="q", priority=9 if low == "high" else 0))
        for index, on in enumerate("nm"):
            state.set_pod(pod(f"{low}-{index}", cpu=2, group=low, on=on))
    decision = decide(state)
    state.reservations = dict(decision.reservations)
    if stage == "decided":
        for binding in decision.bindings:
            state.assume(binding.pod, binding.node)
    for eviction in decision.evictions:
        state.evict(eviction.pod, eviction.uid)
    lose(state)
    state.reservations["d/stray"] = Reservation(((PodKey("d/stray"), NodeName("gone")),), True)
    state.set_node(node("new", cpu=2))
    state.set_pod(pod("late", cpu=2))
    later = decide(state)
    explained = {key for verdict in later.pending_reasons for key, _ in verdict.pods}
    assert explained | {binding.pod for binding in later.bindings} == set(state.pending)
    assert not list(violations(state, later))
    for binding in later.bindings:
        state.assume(binding.pod, binding.node)
    state.forget_assumed(PodKey("d/g-0"), "uid-g-0")
    state.undo_eviction(PodKey("d/low-0"), "uid-low-0")
    assert not list(violations(state, decide(state)))
