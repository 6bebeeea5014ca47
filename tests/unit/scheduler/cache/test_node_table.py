"""The order of equally good nodes: by name, or by a seed."""

from collections import Counter
from random import Random

from gangline.scheduler.cache.node_table import TieOrder
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.simulate.engine import CycleObserver, Simulation, SimulationHistory
from gangline.scheduler.simulate.trace import TraceJob, pod_request, uniform_cluster
from gangline.scheduler.types import CycleResult, NodeName
from unit.scheduler.builders import cluster, decide, node, pod
from unit.scheduler.oracle.check import check_result

NODES = [NodeName(f"n{index}") for index in range(40)]


def ordered(seed: int, names: list[NodeName] = NODES) -> list[NodeName]:
    rows = {name: row for row, name in enumerate(sorted(names, reverse=True))}
    rank = TieOrder(seed).rank(rows, len(rows))
    return sorted(names, key=lambda name: rank[rows[name]])


def trace() -> list[TraceJob]:
    random = Random(11)
    jobs = []
    for index in range(50):
        size = random.choice([1, 1, 2, 4])
        jobs.append(
            TraceJob(
                f"j{index}",
                random.uniform(0, 60),
                random.expovariate(1 / 20),
                size,
                request=pod_request(random.choice([1, 2, 3]), 0, random.choice([0, 1, 2])),
                minimum=size,
                priority=random.choice([0, 0, 5]),
            )
        )
    return jobs


def played(seed: int, *judges: CycleObserver) -> tuple[list[CycleResult], SimulationHistory]:
    seen: list[CycleResult] = []
    record = [lambda _state, decision, _now: seen.append(decision), *judges]
    weights = ScoreWeights(seed=seed)
    simulation = Simulation(
        uniform_cluster(6, 6, "0", 4), trace(), watchers=record, weights=weights
    )
    return seen, simulation.run()


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
    (usual, first), (other, second) = played(0), played(5, check_result)
    assert usual != other
    assert [run.first_started for run in first.runs.values()] == [
        run.first_started for run in second.runs.values()
    ]
    assert [sample.running for sample in first.samples] == [
        sample.running for sample in second.samples
    ]
    for one, two in zip(usual, other, strict=True):
        assert {b.pod for b in one.bindings} == {b.pod for b in two.bindings}
        per_node = [Counter(Counter(b.node for b in d.bindings).values()) for d in (one, two)]
        assert per_node[0] == per_node[1]
