"""Nodes with contradictory amounts are reported, and scheduling continues."""

import msgspec

from gangline.api.node import Node
from gangline.scheduler.node_report import BOASTS, OVERFULL, contradictions
from gangline.scheduler.observe import node_facts
from gangline.scheduler.state import ClusterState
from unit.scheduler.builders import GPU, cluster, decide, node, pod


def told(state: ClusterState) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    return {
        str(name): [(each.reason, each.resources) for each in wrong]
        for name, wrong in contradictions(state).items()
    }


def as_written(allocatable: dict[str, str], capacity: dict[str, str]) -> Node:
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": allocatable, "capacity": capacity, "conditions": ready}
    return msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node)


def test_consistent_nodes_are_not_reported() -> None:
    full = pod("p", cpu=8, memory=32, port=80, on="n")
    assert not contradictions(cluster(node("n"), full, pod("q", cpu=0, port=80, on="n")))
    assert not node_facts(as_written({"cpu": "4"}, {"cpu": "4"})).boasts
    assert not node_facts(as_written({"cpu": "4"}, {})).boasts


def test_a_node_that_offers_more_than_it_has_is_noticed() -> None:
    facts = node_facts(as_written({"cpu": "9", "memory": "1Gi"}, {"cpu": "8", "memory": "1Gi"}))
    state = cluster(facts, pod("p"))
    assert told(state) == {"n": [(BOASTS, ("cpu",))]}
    state.set_node(node_facts(as_written({"cpu": "8"}, {"cpu": "8"})))
    assert not contradictions(state)


def test_a_node_whose_pods_ask_for_more_than_it_offers_is_noticed() -> None:
    state = cluster(node("n", gpu=8), pod("p", gpu=8, on="n"), node("m", gpu=1), pod("q", gpu=1))
    assert not contradictions(state)
    state.set_node(node("n", gpu=6))
    assert told(state) == {"n": [(OVERFULL, (GPU,))]}
    assert (
        "nvidia.com/gpu 8; allocatable: nvidia.com/gpu 6"
        in contradictions(state)[node("n").name][0].message
    )
    assert [binding.node for binding in decide(state).bindings] == ["m"]


def test_deleted_node_is_not_reported() -> None:
    state = cluster(node_facts(as_written({"cpu": "9"}, {"cpu": "8"})), pod("p", cpu=20, on="n"))
    assert len(told(state)["n"]) == 2
    state.remove_node(node("n").name)
    assert not contradictions(state)
