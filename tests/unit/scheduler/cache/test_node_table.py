"""The order of equally good nodes: by name, or by a seed."""

from collections import Counter

from gangline.scheduler.cache.node_table import TieOrder
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.types import NodeName
from unit.scheduler.builders import checked_cycle, cluster, decide, node, pod

NODES = [NodeName(f"n{index}") for index in range(40)]


def ordered(seed: int, names: list[NodeName] = NODES) -> list[NodeName]:
    rows = {name: row for row, name in enumerate(sorted(names, reverse=True))}
    rank = TieOrder(seed).rank(rows, len(rows))
    return sorted(names, key=lambda name: rank[rows[name]])


def test_without_a_seed_the_first_node_by_name_is_used() -> None:
    assert ordered(0) == sorted(NODES)


def test_a_seed_draws_an_order_that_is_always_the_same() -> None:
    assert ordered(7) == ordered(7, NODES[::-1])
    assert len({tuple(ordered(seed)) for seed in range(6)}) == 6


def test_nodes_that_come_or_go_leave_the_order_of_the_others_as_it_was() -> None:
    assert ordered(7, NODES[::2]) == [name for name in ordered(7) if name in NODES[::2]]


def test_score_precedes_the_tie_order() -> None:
    nodes = [node(name, cpu=8) for name in NODES]
    there = pod("there", cpu=2, on=NODES[17])
    for seed in range(5):
        state = cluster(*nodes, there, pod("p", cpu=2), weights=ScoreWeights(seed=seed))
        assert [binding.node for binding in decide(state).bindings] == [NODES[17]]


def test_another_seed_places_elsewhere_and_equally_well() -> None:
    sizes = [(cpu, gpu) for cpu in (1, 2, 3) for gpu in (0, 1, 2)] * 3
    waiting = [pod(f"p{index}", cpu=cpu, gpu=gpu) for index, (cpu, gpu) in enumerate(sizes)]
    placed = []
    for seed in (0, 5):
        nodes = [node(name, cpu=6, gpu=4) for name in NODES]
        state = cluster(*nodes, *waiting, weights=ScoreWeights(seed=seed))
        placed.append({binding.pod: binding.node for binding in checked_cycle(state).bindings})
    usual, other = placed
    assert usual != other
    assert usual.keys() == other.keys()
    per_node = [Counter(Counter(each.values()).values()) for each in placed]
    assert per_node[0] == per_node[1]
